#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "tutti/backends/shared/pair_words.h"
#include "tutti/backends/shared/pipeline.h"
#include "tutti/backends/shared/shared_memory.h"

namespace tutti {

/// Sends and receives that their callers wait for, in shared memory: from each rank to each other
/// one a Pipeline of these two alone, in which a send is a broadcast. What one rank sends to the
/// other comes in the order of the calls, and both say what they mean before anything moves.
///
/// Each rank of two allocates its part when it first sends to the other one or receives from it,
/// and says where that is by its PairWords. The token's holder only, except abort().
class Pairs {
 public:
  /// In each rank's first block, for so many ranks at most.
  static constexpr size_t bytes_of_words(int size) { return PairWords::bytes(size); }
  /// `words`: of each rank, zeroed, bytes_of_words() large; `sleepers`: of each rank.
  Pairs(int rank, SharedMemory& memory, const std::vector<std::byte*>& words,
        std::vector<SleepLine*> sleepers, const Geometry& geometry = {});
  ~Pairs();

  /// A send or a receive, whose `root` is the other rank. Null: it is done; see Launch::spins.
  OperationPtr start(const Collective& collective, const Launch& launch);
  bool progress();
  /// False if progress(), or an operation's advance(), would do something.
  bool may_sleep();
  bool idle() const;
  void abort() { aborted_.store(true); }
  /// The other ranks of what is pending, so far as they have not come to it.
  std::vector<int> missing() const;
  void count(TransportCounters& counters) const;

 private:
  class FirstCall;
  class Memory;
  /// With one other rank. No pipelines: the two have not met yet.
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
  std::vector<int> met_;              // the ranks of those that have pipelines
  std::vector<FirstCall*> awaiting_;  // the other rank, which has not met this one yet
  std::atomic<bool> aborted_{false};
};

}  // namespace tutti
