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

/// A peer's process and words (see PeerWords), as this rank found them when the two ranks
/// connected.
struct PeerSeen {
  int pid = 0;                        // the peer's process id; 0: a thread of this process
  std::unique_ptr<TheirWords> words;  // the peer's words; null for this rank
  uint64_t generation = 0;            // the peer's `closed` word when the two connected

  bool is_near() const { return pid == 0; }
};

/// The state that all operations of one rank share: streams, PeerWords, memory, and the peers'
/// messages. Except for abort(), only the thread that drives the engine uses it.
class PeerExchange {
 public:
  PeerExchange(DeviceRuntime& runtime, Device device, std::shared_ptr<DeviceBell> bell,
               std::unique_ptr<OwnWords> words, std::vector<PeerSeen> peers, Transport& transport);
  /// Waits for the work on the streams, until a deadline. All operations must have been released.
  ~PeerExchange();
  PeerExchange(const PeerExchange&) = delete;
  PeerExchange& operator=(const PeerExchange&) = delete;

  OperationPtr start(const Collective& collective, const Launch& launch);
  std::unique_ptr<Region> allocate(size_t bytes) { return memory_.allocate(bytes); }
  bool progress();
  /// Any thread may call it.
  void abort() noexcept;

 private:
  friend class PeerOperation;

  PeerOperation& operation_of(uint64_t tag);
  bool was_dropped(uint64_t tag) const;
  void recycle(PeerOperation& operation);
  void forget(PeerOperation& operation);
  std::unique_ptr<Region> take_scratch(size_t bytes);

  /// Makes the packing stream publish its next turn after all work that is queued on it now.
  /// Returns the turn's number.
  uint64_t pack_turn();
  /// Publishes the next turn of the reducing stream before the turn's work is enqueued. Returns the
  /// turn's number. Returns 0 if a peer from which the work would read has closed its communicator;
  /// then the work must not begin.
  uint64_t begin_turn(const Collective& collective);
  void end_turn(uint64_t turn);
  /// Make the next hold() wait until `rank` has packed, or reduced, turn `mark`.
  void await_packed(int rank, uint64_t mark);
  void await_reduced(int rank, uint64_t mark);
  void hold(StreamRef stream);
  void ring_after(StreamRef stream);

  /// Ends the operations that cannot end by themselves any more. Returns false if the streams still
  /// run some of them at the deadline.
  bool break_off();
  bool drain(Deadline deadline) noexcept;
  /// Waits until the peers have finished the work that they have begun on this rank's memory.
  /// Returns false at the deadline.
  bool await_peers(Deadline deadline) noexcept;
  /// Waits until the condition is true. Returns false if it is still false at the deadline.
  template <class Condition>
  bool wait_until(const Condition& condition, Deadline deadline);
  /// Returns whether the peer's process has ended. Then all work of its streams has ended too. A
  /// closed connection does not prove that: the peer's streams may still work after its
  /// Communicator has ended.
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
  std::vector<uint64_t> awaited_packed_, awaited_reduced_;  // by rank: highest turns to wait for
  std::vector<AwaitedWord> awaited_;                        // words that the next hold() waits for
  // by tag: operations that this rank started or a peer announced
  std::unordered_map<uint64_t, PeerOperation*> known_;
  std::vector<std::unique_ptr<PeerOperation>> operations_;
  std::vector<PeerOperation*> free_;
  std::vector<std::unique_ptr<Region>> free_scratch_;
  // the latest tags that peers dropped before this rank started the operation
  std::deque<uint64_t> dropped_;
  std::vector<bool> is_gone_;  // by rank: no message will come from this peer any more
  std::atomic<bool> is_aborted_{false};
  bool is_closed_ = false;
  std::optional<Deadline> breaking_off_;  // deadline of the cleanup, once it has begun
};

}  // namespace tutti
