#include "tutti/backends/peer/peer_operation.h"

#include <algorithm>
#include <array>

#include "tutti/backends/device/device_span.h"
#include "tutti/backends/peer/peer_exchange.h"
#include "tutti/backends/peer/peer_kinds.h"

namespace tutti {

namespace {

// Returns the address of the pieces if they are contiguous and in the bucket's order, else null.
std::byte* stretch_of(std::span<const Piece> pieces, DataType dtype, int64_t count) {
  std::byte* const begin = pieces.empty() ? nullptr : pieces[0].data;
  int64_t end = 0;
  for (const auto& piece : pieces) {
    if (piece.offset != end || piece.dtype != dtype || piece.data != begin + end * size_of(dtype))
      return nullptr;
    end += piece.count;
  }
  return end == count ? begin : nullptr;
}

}  // namespace

PeerOperation::PeerOperation(PeerExchange& exchange)
    : exchange_(exchange),
      word_(exchange.runtime_.take_word()),
      heard_(static_cast<size_t>(exchange.size_)) {}

PeerOperation::~PeerOperation() {
  if (!is_abandoned_) exchange_.runtime_.give_back_word(word_);
}

void PeerOperation::open(uint64_t tag) {
  tag_ = tag;
  std::fill(heard_.begin(), heard_.end(), Heard{});
  from_ = to_ = nullptr;
  unpacks_ = has_started_ = has_begun_ = is_finishing_ = false;
  is_vetoed_ = is_dropped_ = is_cancelled_ = is_hopeless_ = false;
  packed_ = reduced_ = 0;
  failure_.reset();
}

size_t PeerOperation::bytes(int64_t count) const {
  return static_cast<size_t>(count * size_of(collective_.dtype));
}

Scale PeerOperation::scale() const {
  Scale scale = collective_.scale;
  if (collective_.op == ReduceOp::average) scale.divisor *= contributors_;
  return scale;
}

bool PeerOperation::is_partner(int peer) const {
  return peer != exchange_.rank_ && (listens_to(collective_, exchange_.rank_, peer) ||
                                     speaks_to(collective_, exchange_.rank_, peer));
}

// --- stage A: pack and announce -----------------------------------------------------------------

void PeerOperation::start(const Collective& collective, const Launch& launch, bool was_dropped) {
  collective_ = collective;
  device_ = *launch.device;
  contributors_ = launch.contributors > 0 ? launch.contributors : exchange_.size_;
  has_started_ = true;
  ++turn_;
  if (exchange_.is_aborted_) {
    is_dropped_ = is_hopeless_ = true;
    return;
  }
  if (was_dropped) {
    is_dropped_ = true;
    for (int peer = 0; peer < exchange_.size_; ++peer)
      if (is_partner(peer)) tell_drop(peer);
    return;
  }
  if (launch.verdict == 0) prepare();
  tell_ready(launch.verdict);
  heard(exchange_.rank_).verdict = launch.verdict;
  // Some peers may have left or died before this operation started.
  for (int peer = 0; peer < exchange_.size_; ++peer)
    if (exchange_.is_gone_[static_cast<size_t>(peer)]) on_gone(peer);
  try_begin();
}

void PeerOperation::prepare() {
  auto& runtime = exchange_.runtime_;
  for (void* event : device_.ready)
    if (event != nullptr) runtime.wait_event(exchange_.packing_, event);
  DeviceSpan span(runtime, exchange_.packing_, device_.spans, "pack");
  if (collective_.kind == CollectiveKind::allreduce) {
    prepare_allreduce();
  } else {
    from_ = const_cast<std::byte*>(collective_.input);
    const int64_t count = input_count(collective_, exchange_.rank_);
    bool is_read = false;
    for (int peer = 0; peer < exchange_.size_; ++peer)
      is_read |= peer != exchange_.rank_ && is_read_by(collective_, exchange_.rank_, peer);
    // If input and output are the same memory, the exchange would overwrite elements that peers
    // have not loaded yet. So a copy of the input is made.
    const bool is_overwritten =
        exchanges_parts(collective_.kind) && collective_.input == collective_.output;
    if (count > 0 && (is_overwritten ||
                      (is_read && !exchange_.memory_.reaches(collective_.input, bytes(count))))) {
      scratch_ = exchange_.take_scratch(bytes(count));
      from_ = scratch_->data();
      runtime.copy(from_, collective_.input, bytes(count), exchange_.packing_);
    }
  }
  span.end();
  packed_ = exchange_.pack_turn();
}

void PeerOperation::prepare_allreduce() {
  const auto& what = collective_;
  const int64_t count = what.send_counts[0];
  if (device_.inputs.empty() && device_.outputs.empty()) {
    own_pieces_[0] = {const_cast<std::byte*>(what.input), what.dtype, 0, count};
    own_pieces_[1] = {what.output, what.dtype, 0, count};
    device_.inputs = {&own_pieces_[0], 1};
    device_.outputs = {&own_pieces_[1], 1};
  }
  const auto& memory = exchange_.memory_;
  from_ = stretch_of(device_.inputs, what.dtype, count);
  to_ = stretch_of(device_.outputs, what.dtype, count);
  if (from_ != nullptr && to_ != nullptr && device_.prescale.is_one() &&
      memory.reaches(from_, to_, bytes(count)))
    return;
  // The memory of a bucket comes from allocate(), so peers reach it. A single tensor may need
  // scratch memory.
  from_ = device_.inputs.data() == own_pieces_ ? nullptr : what.output;
  if (count > 0 && (from_ == nullptr || !memory.reaches(from_, bytes(count)))) {
    scratch_ = exchange_.take_scratch(bytes(count));
    from_ = scratch_->data();
  }
  to_ = from_;
  unpacks_ = true;
  exchange_.runtime_.pack({from_, what.dtype, count, 0, 0, false}, device_.inputs, device_.prescale,
                          false, exchange_.packing_);
}

void PeerOperation::tell_ready(uint32_t verdict) {
  PeerMessage message;
  message.tag = tag_;
  message.verdict = verdict;
  message.mark = packed_;
  for (int peer = 0; peer < exchange_.size_; ++peer) {
    if (peer == exchange_.rank_ || !speaks_to(collective_, exchange_.rank_, peer)) continue;
    const auto* input = from_ == nullptr
                            ? nullptr
                            : from_ + bytes(input_offset(collective_, exchange_.rank_, peer));
    if (exchange_.peers_[static_cast<size_t>(peer)].is_near()) {
      message.input = reinterpret_cast<uintptr_t>(input);
      message.output = reinterpret_cast<uintptr_t>(to_);
    } else if (input != nullptr && packed_ != 0) {
      DeviceHandle of_output;  // input and output are in memory of the same handle
      exchange_.memory_.locate(input, 0, message.handle, message.input);
      if (to_ != nullptr) exchange_.memory_.locate(to_, 0, of_output, message.output);
    }
    exchange_.links_.send(peer, message);
  }
}

// --- messages of the peers ----------------------------------------------------------------------

void PeerOperation::on_message(int from, const PeerMessage& message) {
  auto& its = heard(from);
  switch (message.kind) {
    case PeerMessage::Kind::ready:
      its.is_ready = true;
      its.verdict = message.verdict;
      its.packed = message.mark;
      if (exchange_.peers_[static_cast<size_t>(from)].is_near()) {
        its.input = reinterpret_cast<std::byte*>(message.input);
        its.output = reinterpret_cast<std::byte*>(message.output);
      } else if (message.handle != DeviceHandle{}) {
        its.input = exchange_.memory_.at(message.handle, message.input);
        its.output = exchange_.memory_.at(message.handle, message.output);
      }
      return try_begin();
    case PeerMessage::Kind::done:
      its.is_done = true;
      its.reduced = message.mark;
      return try_finish();
    case PeerMessage::Kind::drop:
    case PeerMessage::Kind::answer:
      its.has_dropped = true;
      // The peer waits until it knows that this rank does not work on the peer's memory. If this
      // rank has begun stage B, its done message answers the peer already.
      if (!has_begun_) {
        if (!is_vetoed_) is_dropped_ = true;
        if (message.kind == PeerMessage::Kind::drop) tell_drop(from, PeerMessage::Kind::answer);
      }
      return try_finish();
  }
}

void PeerOperation::tell_drop(int peer, PeerMessage::Kind kind) {
  auto& its = heard(peer);
  // An answer is sent again even if one was sent before, because the peer may have opened the tag a
  // second time and forgotten the first answer.
  if (peer == exchange_.rank_ || (its.was_told_drop && kind == PeerMessage::Kind::drop)) return;
  its.was_told_drop = true;
  PeerMessage message;
  message.tag = tag_;
  message.kind = kind;
  exchange_.links_.send(peer, message);
}

// Messages that the peer sent before it was gone stay valid. If this rank still needs a message
// from the peer, the operation is hopeless.
void PeerOperation::on_gone(int peer) {
  if (!has_started_ || peer == exchange_.rank_ || is_finishing_) return;
  auto& its = heard(peer);
  const bool needs_ready = !has_begun_ && !is_dropped_ && !is_vetoed_ && !its.is_ready &&
                           listens_to(collective_, exchange_.rank_, peer);
  const bool needs_done = !is_vetoed_ && is_read_by(collective_, exchange_.rank_, peer) &&
                          !its.is_done && !its.has_dropped;
  if (!needs_ready && !needs_done) return;
  is_hopeless_ = true;
  its.has_dropped = true;
  try_finish();
}

// --- stage B: this rank's part ------------------------------------------------------------------

void PeerOperation::try_begin() {
  if (!has_started_ || has_begun_ || is_vetoed_ || is_dropped_ || exchange_.is_aborted_) return;
  uint32_t verdict = heard(exchange_.rank_).verdict;
  for (int peer = 0; peer < exchange_.size_; ++peer) {
    if (peer == exchange_.rank_ || !listens_to(collective_, exchange_.rank_, peer)) continue;
    if (!heard(peer).is_ready) return;
    verdict |= heard(peer).verdict;
  }
  if (verdict == 0) return begin();
  // The verdict is a veto, so no rank reduces. The packing of this rank must finish before its
  // memory is used again.
  is_vetoed_ = true;
  if (packed_ != 0) exchange_.ring_after(exchange_.packing_);
}

void PeerOperation::begin() {
  const int own = exchange_.rank_;
  bool has_work = false;
  if (collective_.kind == CollectiveKind::allreduce)
    has_work = share_of(collective_, own, exchange_.size_).count > 0;
  else if (reduces(collective_.kind))
    has_work = output_count(collective_, own) > 0;
  else
    has_work = !copies_of(collective_, own, exchange_.size_).empty();
  if (has_work) {
    const uint64_t turn = exchange_.begin_turn(collective_);
    if (turn == 0) {
      is_hopeless_ = is_dropped_ = true;
      return;
    }
    has_begun_ = true;
    reduced_ = turn;
    wait_for_inputs();
    DeviceSpan span(exchange_.runtime_, exchange_.reducing_, device_.spans,
                    reduces(collective_.kind) ? "reduce" : "move");
    move();
    span.end();
    exchange_.end_turn(turn);
  }
  has_begun_ = true;
  PeerMessage message;
  message.tag = tag_;
  message.kind = PeerMessage::Kind::done;
  message.mark = reduced_;
  for (int peer = 0; peer < exchange_.size_; ++peer)
    if (peer != own && reads_from(collective_, own, peer)) exchange_.links_.send(peer, message);
  try_finish();
}

void PeerOperation::wait_for_inputs() {
  const int own = exchange_.rank_;
  exchange_.await_packed(own, packed_);
  for (int peer = 0; peer < exchange_.size_; ++peer)
    if (peer != own && reads_from(collective_, own, peer))
      exchange_.await_packed(peer, heard(peer).packed);
  exchange_.hold(exchange_.reducing_);
}

void PeerOperation::move() {
  auto& runtime = exchange_.runtime_;
  const int own = exchange_.rank_;
  if (collective_.kind == CollectiveKind::allreduce)
    return reduce(share_of(collective_, own, exchange_.size_), from_, true);
  if (reduces(collective_.kind)) {
    int64_t begin = 0;
    if (collective_.kind == CollectiveKind::reduce_scatter)
      for (int rank = 0; rank < own; ++rank)
        begin += collective_.send_counts[static_cast<size_t>(rank)];
    return reduce({begin, output_count(collective_, own)}, from_, false);
  }
  for (const auto& copy : copies_of(collective_, own, exchange_.size_)) {
    const auto* source = copy.peer == own ? from_ + bytes(input_offset(collective_, own, own))
                                          : heard(copy.peer).input;
    source += bytes(copy.from);
    auto* target = collective_.output + bytes(copy.to);
    if (source != target) runtime.copy(target, source, bytes(copy.count), exchange_.reducing_);
  }
}

void PeerOperation::reduce(Range elements, const std::byte* own_input, bool into_all) {
  std::array<const std::byte*, DeviceRuntime::kMostReduced> inputs;
  std::array<std::byte*, DeviceRuntime::kMostReduced> outputs;
  const auto size = static_cast<size_t>(exchange_.size_);
  for (int rank = 0; rank < exchange_.size_; ++rank) {
    const auto at = static_cast<size_t>(rank);
    const bool is_own = rank == exchange_.rank_;
    inputs[at] = (is_own ? own_input : heard(rank).input) + bytes(elements.begin);
    if (into_all) outputs[at] = (is_own ? to_ : heard(rank).output) + bytes(elements.begin);
  }
  if (!into_all) outputs[0] = collective_.output;
  const auto op = collective_.op == ReduceOp::average ? ReduceOp::sum : collective_.op;
  exchange_.runtime_.reduce(
      {std::span(inputs).first(size), std::span(outputs).first(into_all ? size : 1), elements.count,
       collective_.dtype, op, scale()},
      exchange_.reducing_);
}

// --- stage C: unpack and open the gates ---------------------------------------------------------

void PeerOperation::try_finish() {
  if (!has_started_ || is_finishing_ || is_vetoed_) return;
  if (!has_begun_ && !(is_dropped_ && (is_cancelled_ || is_hopeless_))) return;
  bool all_done = true;
  for (int peer = 0; peer < exchange_.size_; ++peer) {
    if (peer == exchange_.rank_ || !is_read_by(collective_, exchange_.rank_, peer)) continue;
    all_done &= heard(peer).is_done;
    if (!heard(peer).is_done && !heard(peer).has_dropped) return;
  }
  // A peer that dropped the operation has not done its part. The engine will cancel the operation
  // on this rank too. Until that happens the operation does not finish.
  if (!all_done && !is_cancelled_ && !is_hopeless_) return;
  finish();
}

void PeerOperation::finish() {
  is_finishing_ = true;
  auto& runtime = exchange_.runtime_;
  const int own = exchange_.rank_;
  exchange_.await_packed(own, packed_);
  exchange_.await_reduced(own, reduced_);
  for (int peer = 0; peer < exchange_.size_; ++peer)
    if (peer != own && heard(peer).is_done) exchange_.await_reduced(peer, heard(peer).reduced);
  exchange_.hold(exchange_.ending_);
  const bool is_good = !is_cancelled_ && !is_hopeless_;
  const DeviceOutcome outcome{word_, 2 * turn_, 2 * turn_ + 1,
                              is_good ? device_.gates : std::span<uint64_t* const>()};
  const auto outputs = is_good && unpacks_ ? device_.outputs : std::span<const Piece>();
  const int64_t count = unpacks_ ? collective_.send_counts[0] : 0;
  DeviceSpan span(runtime, exchange_.ending_, device_.spans, "unpack");
  runtime.unpack({to_, collective_.dtype, count, 0, 0, false}, outputs, {}, outcome,
                 exchange_.ending_);
  span.end();
  exchange_.ring_after(exchange_.ending_);
}

// --- the engine's view --------------------------------------------------------------------------

uint64_t PeerOperation::outcome() const {
  if (!is_finishing_) return 0;
  const auto value = std::atomic_ref(*word_).load(std::memory_order_acquire);
  return value >= 2 * turn_ ? value : 0;
}

bool PeerOperation::is_quiet() const {
  if (!has_started_ || outcome() != 0) return true;
  return is_vetoed_ && (packed_ == 0 || load_word(exchange_.own_->words().packed) >= packed_);
}

OperationState PeerOperation::advance() {
  if (is_vetoed_ && is_quiet())
    return is_cancelled_ ? OperationState::failed : OperationState::vetoed;
  if (outcome() != 0) {
    const bool is_good = !is_cancelled_ && !is_hopeless_ && !exchange_.is_poisoned();
    return is_good ? OperationState::done : OperationState::failed;
  }
  // If stage C has begun, this waits for the streams instead of failing now. An early release()
  // would abort all other operations.
  if (exchange_.is_aborted_ || (is_hopeless_ && !is_finishing_)) return OperationState::failed;
  return OperationState::pending;
}

void PeerOperation::cancel() {
  if (is_cancelled_) return;
  is_cancelled_ = true;
  if (is_vetoed_ || is_finishing_) return;
  if (!has_begun_) {
    is_dropped_ = true;
    for (int peer = 0; peer < exchange_.size_; ++peer)
      if (is_partner(peer)) tell_drop(peer);
  }
  try_finish();
}

void PeerOperation::open_gates() noexcept {
  for (auto* gate : device_.gates) std::atomic_ref(*gate).store(1, std::memory_order_release);
}

void PeerOperation::release() { exchange_.recycle(*this); }

}  // namespace tutti
