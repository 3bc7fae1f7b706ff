#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/collectives/executor.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

class PeerExchange;

/// A message of one rank to a peer about an operation.
struct PeerMessage {
  enum class Kind : uint32_t {
    ready,  // the sender's verdict; its data may be read once its `packed` word has reached `mark`
    done,   // the sender's part ends when its `reduced` word reaches `mark`; 0: it has no part
    drop,   // the sender never takes part and wants to know whether the receiver does
    answer  // reply to a drop: the sender does not take part either
  };
  uint64_t tag = 0;
  Kind kind = Kind::ready;
  uint32_t verdict = 0;
  uint64_t mark = 0;
  uint64_t input = 0, output = 0;  // addresses, or offsets into the memory of `handle`
  DeviceHandle handle = {};        // memory of the sender, for a peer in another process
};

/// A collective in three stages. Their order makes sure that no stream can wait forever:
///   A. On its packing stream each rank waits for its own tensors, packs them if needed, and
///      announces them to the peers.
///   B. When all announcements that this rank needs have arrived, its reducing stream waits for the
///      peers' packing and does this rank's part.
///   C. When all peers that work on this rank's memory have reported that they began, its ending
///      stream waits for them, unpacks and opens the gates.
/// Everything that a stream waits for was enqueued before the wait. So no two operations can wait
/// for each other, whatever their order.
///
/// The ready messages carry the verdicts (go or veto), so every rank knows before stage B whether
/// any rank vetoes. Only the thread that drives the engine uses this class.
class PeerOperation final : public Operation {
 public:
  explicit PeerOperation(PeerExchange& exchange);
  ~PeerOperation() override;

  uint64_t tag() const { return tag_; }
  bool has_started() const { return has_started_; }
  /// Called when the operation is about to start, or earlier, when a peer's message arrives first.
  void open(uint64_t tag);
  void start(const Collective& collective, const Launch& launch, bool was_dropped);
  void on_message(int from, const PeerMessage& message);
  /// Called when the peer is gone, so that it sends no more messages.
  void on_gone(int peer);
  /// Releases the user's streams that wait for this operation.
  void open_gates() noexcept;

  OperationState advance() override;
  void cancel() override;
  void release() override;
  const Error* failure() const override { return failure_ ? &*failure_ : nullptr; }
  bool lacks_ranks() const override { return has_started_ && !has_begun_ && !is_vetoed_; }
  bool is_on_its_way() const override { return is_finishing_; }

 private:
  friend class PeerExchange;

  // The state of one peer, as its messages reported it.
  struct Heard {
    bool is_ready = false;
    bool is_done = false;
    bool has_dropped = false;
    bool was_told_drop = false;
    uint32_t verdict = 0;
    uint64_t packed = 0, reduced = 0;  // marks of the peer's ready and done messages
    std::byte* input = nullptr;        // the peer's input, mapped into this process
    std::byte* output = nullptr;
  };

  void prepare();
  void prepare_allreduce();
  void tell_ready(uint32_t verdict);
  void tell_drop(int peer, PeerMessage::Kind kind = PeerMessage::Kind::drop);
  void try_begin();
  void begin();
  void wait_for_inputs();
  void move();
  void reduce(Range elements, const std::byte* own_input, bool into_all);
  void try_finish();
  void finish();
  Heard& heard(int peer) { return heard_[static_cast<size_t>(peer)]; }
  const Heard& heard(int peer) const { return heard_[static_cast<size_t>(peer)]; }
  bool is_partner(int peer) const;
  /// Returns whether the device has finished all commands of this operation.
  bool is_quiet() const;
  uint64_t outcome() const;  // 0: the result is not known yet
  Scale scale() const;
  size_t bytes(int64_t count) const;

  PeerExchange& exchange_;
  uint64_t* const word_;
  // counts the uses of this object, so that each use writes different values to word_
  uint64_t turn_ = 0;
  uint64_t tag_ = 0;
  Collective collective_;
  DeviceLaunch device_;
  int contributors_ = 0;
  Piece own_pieces_[2];  // input and output of an allreduce without a bucket
  std::vector<Heard> heard_;
  std::byte* from_ = nullptr;  // memory that the peers load from
  std::byte* to_ = nullptr;    // memory that the peers store into, in an allreduce
  bool unpacks_ = false;       // the result must be unpacked from to_
  std::unique_ptr<Region> scratch_;
  uint64_t packed_ = 0, reduced_ = 0;  // turns of this rank; 0: no work
  bool has_started_ = false;
  bool has_begun_ = false;     // stage B has begun
  bool is_finishing_ = false;  // stage C has begun
  bool is_vetoed_ = false;
  bool is_dropped_ = false;  // stage B will never begin
  bool is_cancelled_ = false;
  bool is_hopeless_ = false;  // a needed peer is gone
  // true if this object was released while the device still worked on it; it is never reused
  bool is_abandoned_ = false;
  std::optional<Error> failure_;
};

}  // namespace tutti
