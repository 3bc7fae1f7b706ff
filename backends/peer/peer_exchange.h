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

/// A peer as this rank found it when they connected.
struct PeerSeen {
  int pid = 0;                        // 0: a thread of this process
  std::unique_ptr<TheirWords> words;  // null at the own rank
  uint64_t generation = 0;            // value of its `closed` word when they connected

  bool is_near() const { return pid == 0; }
};

/// The state that all operations of one rank share: streams, words, memory, and the messages of the
/// peers. Only the holder of the engine's token uses it, except abort().
class PeerExchange {
 public:
  PeerExchange(DeviceRuntime& runtime, Device device, std::shared_ptr<DeviceBell> bell,
               std::unique_ptr<OwnWords> words, std::vector<PeerSeen> peers, Transport& transport);
  /// Waits for the streams until a deadline. All operations must be released before.
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

  /// Publishes the next turn of the packing stream, behind the work that is on it now, and returns
  /// its number.
  uint64_t pack_turn();
  /// Publishes the next turn of the reducing stream, before its work is enqueued, and returns its
  /// number. Returns 0 if the work must not begin: a peer whose memory it would touch takes no more
  /// part.
  uint64_t begin_turn(const Collective& collective);
  void end_turn(uint64_t turn);
  /// These add a condition for the next hold(): the rank has packed, or reduced, turn `mark`.
  void await_packed(int rank, uint64_t mark);
  void await_reduced(int rank, uint64_t mark);
  void hold(StreamRef stream);
  void ring_after(StreamRef stream);

  /// Ends operations that do not end by themselves on this rank. Returns false if some are still on
  /// a stream.
  bool break_off();
  bool drain(Deadline deadline) noexcept;
  /// Waits until the work that peers have begun on this rank's memory is over.
  bool await_peers(Deadline deadline) noexcept;
  /// Returns false if the condition does not hold before the deadline.
  template <class Condition>
  bool wait_until(const Condition& condition, Deadline deadline);
  /// Returns whether the peer's process has ended, and with it all work of its streams. A closed
  /// connection proves less: one of the two Communicators is over, but the peer's streams may still
  /// work.
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
  std::vector<AwaitedWord> awaited_;                        // words that the next hold() waits for
  // by tag: operations that were started here or announced by a peer
  std::unordered_map<uint64_t, PeerOperation*> known_;
  std::vector<std::unique_ptr<PeerOperation>> operations_;
  std::vector<PeerOperation*> free_;
  std::vector<std::unique_ptr<Region>> free_scratch_;
  // the latest tags that peers dropped; this rank may still start them
  std::deque<uint64_t> dropped_;
  std::vector<bool> is_gone_;  // by rank: no message comes from it any more
  std::atomic<bool> is_aborted_{false};
  bool is_closed_ = false;
  std::optional<Deadline> breaking_off_;  // deadline of the cleanup
};

}  // namespace tutti
