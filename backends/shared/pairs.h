#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "tutti/backends/shared/pair_words.h"
#include "tutti/backends/shared/pipeline.h"
#include "tutti/backends/shared/shared_memory.h"

namespace tutti {

/// Blocking sends and receives in shared memory. For each direction of each pair of ranks there is
/// a Pipeline of these two alone, in which a send is a broadcast. Messages of a pair arrive in the
/// order of the calls, and both ranks publish their call before anything moves.
///
/// Each rank of a pair allocates its part at its first call with the other rank and publishes the
/// offset in its PairWords. Only the holder of the engine's token uses it, except abort().
class Pairs {
 public:
  /// Returns the bytes of the words in each rank's first block.
  static constexpr size_t bytes_of_words(int size) { return PairWords::bytes(size); }
  /// `words`: one block per rank, zeroed, of bytes_of_words() bytes; `sleepers`: one per rank.
  Pairs(int rank, SharedMemory& memory, const std::vector<std::byte*>& words,
        std::vector<SleepLine*> sleepers, const Geometry& geometry = {});
  ~Pairs();

  /// Starts a send or a receive; its `root` is the other rank. Returns null if it is done already
  /// (Launch::spins).
  OperationPtr start(const Collective& collective, const Launch& launch);
  bool progress();
  /// Returns false if progress(), or an operation's advance(), would do something.
  bool may_sleep();
  bool idle() const;
  void abort() { aborted_.store(true); }
  /// Returns the peers that have not called their side of the pending calls yet.
  std::vector<int> missing() const;
  void count(TransportCounters& counters) const;

 private:
  class FirstCall;
  class Memory;
  /// The state with one other rank. It has no pipelines until the two have met.
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
  std::vector<Pair> pairs_;           // by the other rank
  std::vector<int> met_;              // the other ranks of pairs with pipelines
  std::vector<FirstCall*> awaiting_;  // calls whose peer has not met this rank yet
  std::atomic<bool> aborted_{false};
};

}  // namespace tutti
