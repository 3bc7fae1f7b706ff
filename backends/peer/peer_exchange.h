#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tutti/backends/device/device_backend.h"
#include "tutti/backends/order/message_links.h"
#include "tutti/backends/peer/peer_memory.h"
#include "tutti/backends/peer/peer_operation.h"
#include "tutti/backends/peer/peer_words.h"

namespace tutti {

/// A peer as this rank met it.
struct PeerSeen {
  int pid = 0;                        // 0: a thread of this process
  std::unique_ptr<TheirWords> words;  // null at the own rank
  uint64_t generation = 0;            // of `closed` when they met

  bool is_near() const { return pid == 0; }
};

/// What all operations of one rank share: streams, words, memory, and who said what. The holder of
/// the engine's token only, but for abort().
class PeerExchange {
 public:
  PeerExchange(DeviceRuntime& runtime, Device device, std::shared_ptr<DeviceBell> bell,
               std::unique_ptr<OwnWords> words, std::vector<PeerSeen> peers, Transport& transport);
  /// Has a deadline. All operations are released.
  ~PeerExchange();
  PeerExchange(const PeerExchange&) = delete;
  PeerExchange& operator=(const PeerExchange&) = delete;

  OperationPtr start(const Collective& collective, const Launch& launch);
  std::unique_ptr<Region> allocate(size_t bytes) { return memory_.allocate(bytes); }
  bool progress();
  /// Any thread.
  void abort() noexcept;

 private:
  friend class PeerOperation;

  PeerOperation& operation_of(uint64_t tag);
  bool was_dropped(uint64_t tag) const;
  void recycle(PeerOperation& operation);
  void forget(PeerOperation& operation);
  std::unique_ptr<Region> take_scratch(size_t bytes);

  /// The next turn of the packing stream, whose work is all on it; of the reducing one, whose work
  /// may begin unless this returns 0: a peer whose memory it would touch takes no more part.
  uint64_t pack_turn();
  uint64_t begin_turn(const Collective& collective);
  void end_turn(uint64_t turn);
  /// What the next hold() waits for: that a rank has packed, or reduced, what `mark` says.
  void await_packed(int rank, uint64_t mark);
  void await_reduced(int rank, uint64_t mark);
  void hold(StreamRef stream);
  void ring_after(StreamRef stream);

  /// Ends what does not end by itself, on this rank; false if some of it is still on a stream.
  bool break_off();
  bool drain(Deadline deadline) noexcept;
  /// What peers have begun on this rank's memory is over.
  bool await_peers(Deadline deadline) noexcept;
  /// False: not before the deadline.
  template <class Condition>
  bool wait_until(const Condition& condition, Deadline deadline);
  /// Its process has ended, and with it all that its streams did. That a peer says nothing any more
  /// means less: its Communicator is over, or this rank's, and its streams work on.
  bool has_died(int peer) const;
  void free_streams_of_the_dead();
  bool is_poisoned() const;

  PeerWords& words_of(int rank) const {
    return rank == rank_ ? own_->words() : peers_[static_cast<size_t>(rank)].words->words();
  }

  DeviceRuntime& runtime_;
  const Device device_;
  const std::shared_ptr<DeviceBell> bell_;
  const std::unique_ptr<OwnWords> own_;
  const std::vector<PeerSeen> peers_;
  const int rank_, size_;
  PeerMemory memory_;
  MessageLinks<PeerMessage> links_;
  const StreamRef packing_, reducing_, ending_;
  void* const event_;
  uint64_t packed_turn_, begun_turn_;
  std::vector<uint64_t> awaited_packed_, awaited_reduced_;  // the highest marks, by rank
  std::vector<AwaitedWord> awaited_;                        // by the next hold()
  std::unordered_map<uint64_t, PeerOperation*> known_;      // by tag, started or heard of
  std::vector<std::unique_ptr<PeerOperation>> operations_;
  std::vector<PeerOperation*> free_;
  std::vector<std::unique_ptr<Region>> free_scratch_;
  std::deque<uint64_t> dropped_;  // the last ones: this rank may still start them
  std::vector<bool> is_gone_;     // by rank: nothing is heard of it any more
  std::atomic<bool> is_aborted_{false};
  bool is_closed_ = false;
  std::optional<Deadline> breaking_off_;  // until when
};

}  // namespace tutti
