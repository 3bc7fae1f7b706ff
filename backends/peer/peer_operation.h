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
    ready,  // the sender's verdict; its data may be read once `mark` is packed
    done,   // the sender's part is on its stream and over once `mark` is reduced; 0: it has no part
    drop,   // the sender never takes part and wants to know whether the receiver does
    answer  // reply to a drop: the sender does not take part either
  };
  uint64_t tag = 0;
  Kind kind = Kind::ready;
  uint32_t verdict = 0;
  uint64_t mark = 0;
  uint64_t input = 0, output = 0;  // addresses, or offsets into the memory of `handle`
  DeviceHandle handle = {};        // for a peer in another process
};

/// A collective in three stages, arranged so that no stream can hang:
///   A. On its packing stream each rank waits for its own tensors, packs them if needed, and
///      announces them to the peers.
///   B. When all announcements that this rank needs have arrived, its reducing stream waits for the
///      peers' packing and does this rank's part.
///   C. When all peers that work on this rank's memory have reported that they began, its ending
///      stream waits for them, unpacks and opens the gates.
/// So everything that a stream waits for was enqueued before the wait, and no order of operations
/// makes two of them wait for each other.
///
/// Verdicts travel with the announcement, so all ranks know before B whether there is a veto. Only
/// the holder of the engine's token uses it.
class PeerOperation final : public Operation {
 public:
  explicit PeerOperation(PeerExchange& exchange);
  ~PeerOperation() override;

  uint64_t tag() const { return tag_; }
  bool has_started() const { return has_started_; }
  /// Called when a peer's message arrived first, or when the operation is about to start.
  void open(uint64_t tag);
  void start(const Collective& collective, const Launch& launch, bool was_dropped);
  void on_message(int from, const PeerMessage& message);
  /// Called when no message comes from this peer any more.
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

  // The state of one peer, from its messages.
  struct Heard {
    bool is_ready = false;
    bool is_done = false;
    bool has_dropped = false;
    bool was_told_drop = false;
    uint32_t verdict = 0;
    uint64_t packed = 0, reduced = 0;  // marks
    std::byte* input = nullptr;        // mapped into this process
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
  uint64_t outcome() const;  // 0: none yet
  Scale scale() const;
  size_t bytes(int64_t count) const;

  PeerExchange& exchange_;
  uint64_t* const word_;
  uint64_t turn_ = 0;  // number of uses; makes the word's values of each use differ
  uint64_t tag_ = 0;
  Collective collective_;
  DeviceLaunch device_;
  int contributors_ = 0;
  Piece own_pieces_[2];  // for an allreduce without a bucket
  std::vector<Heard> heard_;
  std::byte* from_ = nullptr;  // memory that the peers load from
  std::byte* to_ = nullptr;    // memory that the peers store into, in an allreduce
  bool unpacks_ = false;       // the result is unpacked from to_
  std::unique_ptr<Region> scratch_;
  uint64_t packed_ = 0, reduced_ = 0;  // turns of this rank; 0: none
  bool has_started_ = false;
  bool has_begun_ = false;     // stage B has begun
  bool is_finishing_ = false;  // stage C has begun
  bool is_vetoed_ = false;
  bool is_dropped_ = false;  // stage B never begins
  bool is_cancelled_ = false;
  bool is_hopeless_ = false;   // a peer that is needed is gone
  bool is_abandoned_ = false;  // released while the device still worked on it; never reused
  std::optional<Error> failure_;
};

}  // namespace tutti
