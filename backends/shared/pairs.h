#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "tutti/backends/shared/pair_words.h"
#include "tutti/backends/shared/pipeline.h"
#include "tutti/backends/shared/shared_memory.h"

namespace tutti {

/// Runs blocking sends and receives in shared memory. Each pair of ranks has two Pipelines, one per
/// direction, in which a send is a broadcast between two ranks. Messages of a pair arrive in the
/// order of the calls. No data moves before both ranks have published their call.
///
/// At its first call with another rank, a rank allocates its memory for the pair and publishes the
/// memory's offset in PairWords. Except for abort(), only the thread that drives the engine uses
/// this class.
class Pairs {
 public:
  /// Returns the bytes that PairWords need in each rank's first block.
  static constexpr size_t bytes_of_words(int size) { return PairWords::bytes(size); }
  /// `words` has one block per rank, zeroed, of bytes_of_words() bytes. `sleepers` has one line per
  /// rank.
  Pairs(int rank, SharedMemory& memory, const std::vector<std::byte*>& words,
        std::vector<SleepLine*> sleepers, const Geometry& geometry = {});
  ~Pairs();

  /// Starts a send or a receive. The Collective's `root` is the other rank. Returns null if the
  /// operation is already done (see Launch::spins).
  OperationPtr start(const Collective& collective, const Launch& launch);
  bool progress();
  /// Returns false if progress() or the advance() of an operation can do something now.
  bool may_sleep();
  bool idle() const;
  void abort() { aborted_.store(true); }
  /// Returns the peers that have not made their call for a pending operation of this rank yet.
  std::vector<int> missing() const;
  void count(TransportCounters& counters) const;

 private:
  class FirstCall;
  class Memory;
  /// The state of the pair with one other rank. The Pipelines exist once both ranks have made a
  /// call.
  struct Pair {
    std::unique_ptr<Region> region;
    std::unique_ptr<Memory> sent, received;
    std::unique_ptr<Pipeline> to, from;
  };
  using Meeting = PairWords::Meeting;

  Meeting meet(int peer);
  std::unique_ptr<Pipeline> make_pipeline(Memory& memory, std::byte* sender, std::byte* receiver);
  Pipeline& pipeline_of(const Collective& collective);
  OperationPtr start_met(const Collective& collective, const Launch& launch);

  const int rank_;
  SharedMemory& memory_;
  const Geometry geometry_;
  const std::vector<SleepLine*> sleepers_;
  PairWords words_;
  std::vector<Pair> pairs_;           // by rank: the pair with that rank
  std::vector<int> met_;              // ranks whose pair has Pipelines
  std::vector<FirstCall*> awaiting_;  // calls whose peer has not made its first call yet
  std::atomic<bool> aborted_{false};
};

}  // namespace tutti
