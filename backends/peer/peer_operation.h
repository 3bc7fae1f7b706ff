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

/// What a rank tells a peer about an operation.
struct PeerMessage {
  enum class Kind : uint32_t {
    ready,  // it is on its stream: where the data will be once `mark` is packed; or a verdict
    done,   // the sender's part is on its stream: over once `mark` is reduced; 0: it has none
    drop,   // the sender takes no part, and never will; wants to hear whether the other one does
    answer  // to a drop: nor does the sender
  };
  uint64_t tag = 0;
  Kind kind = Kind::ready;
  uint32_t verdict = 0;
  uint64_t mark = 0;
  uint64_t input = 0, output = 0;  // addresses, or from where `handle` begins
  DeviceHandle handle = {};        // for a peer in another process
};

/// A collective by stages that no stream can hang in. A: on its packing stream each rank waits for
/// its own tensors, packs what must be packed, and tells the peers. B: when this rank has heard of
/// all peers that it needs, its reducing stream waits for their packing and does this rank's part.
/// C: when it has heard that all peers who work on its memory have begun, its ending stream waits
/// for them, unpacks and opens the gates. So whatever a stream waits for was on its way before the
/// wait was, and no order of operations makes two wait for each other.
///
/// Verdicts travel with the first message: before B all ranks know whether there is one. The holder
/// of the engine's token only.
class PeerOperation final : public Operation {
 public:
  explicit PeerOperation(PeerExchange& exchange);
  ~PeerOperation() override;

  uint64_t tag() const { return tag_; }
  bool has_started() const { return has_started_; }
  /// It was heard of, or is about to start.
  void open(uint64_t tag);
  void start(const Collective& collective, const Launch& launch, bool was_dropped);
  void on_message(int from, const PeerMessage& message);
  /// Nothing comes from this peer any more.
  void on_gone(int peer);
  /// Lets go of streams of the user that wait for it.
  void open_gates() noexcept;

  OperationState advance() override;
  void cancel() override;
  void release() override;
  const Error* failure() const override { return failure_ ? &*failure_ : nullptr; }
  bool lacks_ranks() const override { return has_started_ && !has_begun_ && !is_vetoed_; }
  bool is_on_its_way() const override { return is_finishing_; }

 private:
  friend class PeerExchange;

  // Of one peer.
  struct Heard {
    bool is_ready = false;
    bool is_done = false;
    bool has_dropped = false;
    bool was_told_drop = false;
    uint32_t verdict = 0;
    uint64_t packed = 0, reduced = 0;  // marks
    std::byte* input = nullptr;        // as this rank reaches them
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
  /// What the device was given for it has happened.
  bool is_quiet() const;
  uint64_t outcome() const;  // 0: none yet
  Scale scale() const;
  size_t bytes(int64_t count) const;

  PeerExchange& exchange_;
  uint64_t* const word_;
  uint64_t turn_ = 0;  // how often it was used: the word's values differ
  uint64_t tag_ = 0;
  Collective collective_;
  DeviceLaunch device_;
  int contributors_ = 0;
  Piece own_pieces_[2];  // of an allreduce that is no bucket
  std::vector<Heard> heard_;
  std::byte* from_ = nullptr;  // what the peers load
  std::byte* to_ = nullptr;    // where they store, in an allreduce
  bool unpacks_ = false;       // from there
  std::unique_ptr<Region> scratch_;
  uint64_t packed_ = 0, reduced_ = 0;  // own turns; 0: none
  bool has_started_ = false;
  bool has_begun_ = false;     // B is on its way
  bool is_finishing_ = false;  // and C
  bool is_vetoed_ = false;
  bool is_dropped_ = false;  // B never begins
  bool is_cancelled_ = false;
  bool is_hopeless_ = false;   // a peer that it needs is gone
  bool is_abandoned_ = false;  // released while the device worked on it; not used again
  std::optional<Error> failure_;
};

}  // namespace tutti
