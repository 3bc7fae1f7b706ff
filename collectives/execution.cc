#include "tutti/collectives/execution.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/kernels/reduce.h"

namespace tutti {

namespace {

// A key consists of the segment's number and the round.
constexpr int kRoundBits = 14;
constexpr int64_t kMostSegments = int64_t{1} << (32 - kRoundBits);
// The maximum number of segments in flight per queue. A queue also has a limit in bytes, but short
// segments hardly count towards that limit.
constexpr int64_t kMostLanes = 64;

Scale final_scale(const Collective& collective, const Launch& launch, int size) {
  if (!reduces(collective.kind)) return {};
  Scale scale = collective.scale;
  if (collective.op == ReduceOp::average)
    scale.divisor *= launch.contributors > 0 ? launch.contributors : size;
  return scale;
}

}  // namespace

// --- an operation begins ------------------------------------------------------------------------

void Execution::take(const Collective& collective, const Launch& launch) {
  collective_ = collective;
  launch_ = launch;
  element_bytes_ = size_of(collective.dtype);
  op_ = collective.op == ReduceOp::average ? ReduceOp::sum : collective.op;
  scale_ = final_scale(collective, launch, pool_.transport.size());
  input_is_readable_ = launch.verdict == 0 || (launch.edges.fill != nullptr && !packs());
  is_staged_ = reduces(collective.kind) && (launch.edges.drain == nullptr || packs());
}

Traffic Execution::predict(const Algorithm& algorithm, const Collective& collective,
                           const Launch& launch) {
  take(collective, launch);
  lay_out(algorithm);
  const int64_t before = segments_ - 1;
  const int64_t elements = before * first_->sent_elements + last_->sent_elements;
  return {static_cast<uint64_t>(before * first_->sends + last_->sends),
          static_cast<uint64_t>(elements * element_bytes_)};
}

void Execution::begin(const Algorithm& algorithm, const Collective& collective,
                      const Launch& launch) {
  take(collective, launch);
  lay_out(algorithm);

  const auto longest = static_cast<size_t>(std::max(first_->longest, last_->longest));
  const size_t blank = input_is_readable_ ? 0 : longest * static_cast<size_t>(element_bytes_);
  if (blank_.size() < blank) blank_.resize(blank);

  next_segment_ = 0;
  has_heard_all_ = has_failed_ = is_giving_up_ = false;
  has_received_any_ = !last_->receives_any;
  verdict_ = launch.verdict;
  state_ = OperationState::pending;
  queue_ = launch.queue == kNoQueue ? &own_queue_ : &pool_.queues[launch.queue];
  queue_->waiting.push_back(this);
  begin_segments();
}

void Execution::lay_out(const Algorithm& algorithm) {
  const bool in_place =
      !is_staged_ && collective_.input != nullptr && collective_.input == collective_.output;
  const auto& transport = pool_.transport;
  Problem problem{
      collective_.kind,        transport.rank(),        transport.size(), collective_.root,
      collective_.send_counts, collective_.recv_counts, pool_.hosts,      in_place,
      sums_of(collective_)};
  require_valid(problem);
  whole_input_ = input_count(problem);
  whole_output_ = output_count(problem);
  segments_ = 1;
  segment_count_ = 0;
  if (!is_elementwise(collective_.kind)) {
    first_ = last_ = pool_.prepare(algorithm, problem);
    return;
  }
  const int64_t whole = collective_.send_counts[0];
  const int64_t wanted = pool_.options.segment_bytes / element_bytes_;
  segment_count_ = std::max({int64_t{1}, wanted, (whole + kMostSegments - 1) / kMostSegments});
  segments_ = std::max<int64_t>(1, (whole + segment_count_ - 1) / segment_count_);
  const int64_t count = whole - (segments_ - 1) * segment_count_;
  problem.counts = std::span(&count, 1);
  last_ = pool_.prepare(algorithm, problem);
  if (segments_ > 1) problem.counts = std::span(&segment_count_, 1);
  first_ = pool_.prepare(algorithm, problem);
}

Range Execution::part_of(int64_t segment, int64_t whole) const {
  if (segment_count_ == 0) return {0, whole};
  const int64_t begin = std::min(segment * segment_count_, whole);
  return {begin, std::min(segment_count_, whole - begin)};
}

int64_t Execution::bytes_of(int64_t segment) const {
  return std::max(part_of(segment, whole_input_).count, part_of(segment, whole_output_).count) *
         element_bytes_;
}

// --- segments -----------------------------------------------------------------------------------

// Every rank begins the first segments_in_flight segments, whatever the verdicts (go or veto) are.
// Once a rank has completed a segment it knows the verdicts of all ranks. After a veto no rank
// begins further segments.
bool Execution::may_begin_segment() const {
  if (next_segment_ == segments_) return false;
  return next_segment_ < pool_.options.segments_in_flight || (has_heard_all_ && verdict_ == 0);
}

// Begins segments while the queue has room. Leaves the queue when no segment is left to begin.
void Execution::begin_segments() {
  const int64_t most = pool_.options.segments_in_flight * pool_.options.segment_bytes;
  while (!queue_->waiting.empty() && queue_->waiting.front() == this && may_begin_segment()) {
    const bool has_room =
        queue_->lanes < kMostLanes && queue_->bytes_in_flight + bytes_of(next_segment_) <= most;
    if (queue_->lanes > 0 && !has_room) return;
    begin_segment();
  }
  const bool is_over =
      next_segment_ == segments_ || (has_heard_all_ && verdict_ != 0 && !may_begin_segment());
  if (is_over) leave_queue();
}

void Execution::leave_queue() { std::erase(queue_->waiting, this); }

void Execution::begin_segment() {
  const int64_t segment = next_segment_++;
  const auto& prepared = prepared_of(segment);
  const Range input = part_of(segment, whole_input_), output = part_of(segment, whole_output_);
  const auto bytes = [&](int64_t count) { return static_cast<size_t>(count * element_bytes_); };
  const int64_t packed = packs() ? std::max(input.count, output.count) : output.count;
  auto& lane = *lanes_.emplace_back(
      pool_.take_lane(prepared, bytes(prepared.schedule.scratch), is_staged_ ? bytes(packed) : 0));
  lane.segment = segment;
  lane.prepared = &prepared;
  lane.round_begin = lane.round_end = 0;
  lane.is_direct = false;
  lane.bytes = bytes_of(segment);
  queue_->bytes_in_flight += lane.bytes;
  ++queue_->lanes;

  choose_input(lane);
  lane.output = is_staged_ ? lane.bucket
                : collective_.output == nullptr
                    ? nullptr
                    : collective_.output + output.begin * element_bytes_;
  if (has_heard_all_) write_directly(lane);
  post_round(lane);
}

void Execution::choose_input(Lane& lane) {
  const Range input = part_of(lane.segment, whole_input_);
  const auto& edges = launch_.edges;
  const bool fills = edges.fill != nullptr && launch_.verdict == 0 && input.count > 0;
  if (!packs()) {
    auto* place = const_cast<std::byte*>(collective_.input);
    if (place != nullptr) place += input.begin * element_bytes_;
    if (fills) edges.fill(edges.self, input, place);
    lane.input = place;
    return;
  }
  lane.input = fills && edges.input != nullptr ? edges.input(edges.self, input) : nullptr;
  if (lane.input != nullptr) return;
  lane.input = lane.bucket;
  if (fills) edges.fill(edges.self, input, lane.bucket);
}

// Returns the user's memory for a segment's output if it is contiguous; else null.
std::byte* Execution::final_place(const Lane& lane) const {
  const Range output = part_of(lane.segment, whole_output_);
  const auto& edges = launch_.edges;
  if (output.count == 0) return nullptr;
  if (edges.drain == nullptr) return collective_.output + output.begin * element_bytes_;
  return edges.output != nullptr ? edges.output(edges.self, output) : nullptr;
}

// Makes the user's memory the output of the segment, if it is contiguous and no rank vetoes.
// Requires that the verdicts of all ranks are known.
void Execution::write_directly(Lane& lane) {
  if (!is_staged_ || lane.is_direct || verdict_ != 0) return;
  auto* place = final_place(lane);
  if (place == nullptr) return;
  lane.output = place;
  lane.is_direct = true;
}

std::byte* Execution::at(const Lane& lane, Slot slot, int64_t element) const {
  std::byte* base = slot == Slot::scratch  ? lane.scratch
                    : slot == Slot::output ? lane.output
                                           : const_cast<std::byte*>(lane.input);
  return base == nullptr ? nullptr : base + element * element_bytes_;
}

// Returns whether the peer may overwrite the elements of this send with their results.
bool Execution::may_lend(const Lane& lane, const Step& step) const {
  const auto number = static_cast<size_t>(&step - lane.prepared->schedule.steps.data());
  return lane.prepared->comes_back[number] && input_is_readable_ && verdict_ == 0 &&
         lane.input != nullptr && lane.input == final_place(lane);
}

void Execution::post_round(Lane& lane) {
  const auto& steps = lane.prepared->schedule.steps;
  lane.round_begin = lane.round_end;
  lane.has_acted = false;
  if (lane.round_begin == steps.size()) return;
  const int round = steps[lane.round_begin].round;
  while (lane.round_end < steps.size() && steps[lane.round_end].round == round) ++lane.round_end;
  const auto key = static_cast<uint32_t>(lane.segment << kRoundBits) | static_cast<uint32_t>(round);
  const std::span current(steps.data() + lane.round_begin, lane.round_end - lane.round_begin);
  const auto size = [&](const Range& range) {
    return static_cast<size_t>(range.count * element_bytes_);
  };
  auto& transport = pool_.transport;
  for (const auto& step : current) {
    if (step.action != Action::recv) continue;
    const std::span target(at(lane, step.to, step.target.begin), size(step.target));
    const auto number = static_cast<size_t>(&step - steps.data());
    const auto ticket = lane.prepared->is_viewable[number]
                            ? transport.irecv_view(step.peer, launch_.tag, key, target)
                            : transport.irecv(step.peer, launch_.tag, key, target);
    lane.receives.push_back({ticket, &step});
  }
  for (const auto& step : current) {
    if (step.action != Action::send) continue;
    const auto* source = step.from == Slot::input && !input_is_readable_
                             ? blank_.data()
                             : at(lane, step.from, step.source.begin);
    MessageHeader header{launch_.tag, key, verdict_};
    header.is_lent = may_lend(lane, step);
    for (const auto& returned : lane.returned)
      if (step.from == Slot::output && returned.peer == step.peer && returned.range == step.source)
        header.place = returned.place;
    lane.sends.push_back(transport.isend(step.peer, header, {source, size(step.source)}));
  }
}

// Returns true if all messages of the current round have arrived or can be viewed in their senders'
// memory.
bool Execution::has_received(Lane& lane) {
  auto& transport = pool_.transport;
  std::erase_if(lane.receives, [&](const Receive& receive) {
    const auto state = transport.test(receive.ticket, &verdict_);
    has_failed_ |= state == TransferState::failed;
    has_received_any_ |= state == TransferState::done;
    if (state == TransferState::done)
      if (const auto* data = transport.view(receive.ticket))
        lane.views.push_back({receive.ticket, receive.step->peer, receive.step->target, data});
    return state != TransferState::pending;
  });
  return lane.receives.empty();
}

bool Execution::has_sent(Lane& lane) {
  std::erase_if(lane.sends, [&](Ticket ticket) {
    const auto state = pool_.transport.test(ticket);
    has_failed_ |= state == TransferState::failed;
    return state != TransferState::pending;
  });
  return lane.sends.empty();
}

void Execution::give_views_back(Lane& lane) {
  for (const auto& view : lane.views) has_failed_ |= !pool_.transport.give_back(view.ticket);
  lane.views.clear();
}

// Runs the copies and reductions of the current round. After a veto it skips them, because their
// results are not used. Messages are still sent and received then.
void Execution::act(Lane& lane) {
  const auto& schedule = lane.prepared->schedule;
  if (lane.round_begin == lane.round_end) return;
  if (schedule.steps[lane.round_begin].round == schedule.heard_all) {
    has_heard_all_ = true;
    write_directly(lane);
  }
  if (verdict_ != 0) return;
  for (size_t i = lane.round_begin; i < lane.round_end; ++i) {
    const auto& step = schedule.steps[i];
    if (step.source.count == 0) continue;
    if (step.action == Action::reduce) reduce_step(lane, step);
    if (step.action != Action::copy) continue;
    const auto* source = at(lane, step.from, step.source.begin);
    auto* target = at(lane, step.to, step.target.begin);
    if (source != target)
      std::memmove(target, source, static_cast<size_t>(step.source.count * element_bytes_));
  }
}

// Returns the address of an element of scratch, which may still be in its sender's memory.
const std::byte* Execution::operand(const Lane& lane, int64_t element) const {
  for (const auto& view : lane.views)
    if (element >= view.range.begin && element < view.range.end())
      return view.data + (element - view.range.begin) * element_bytes_;
  return at(lane, Slot::scratch, element);
}

void Execution::reduce_step(Lane& lane, const Step& step) {
  pool_.operands.clear();
  pool_.results.assign(1, at(lane, step.to, step.target.begin));
  int64_t other = step.operands.begin;
  for (int i = 0; i < step.operands.count; ++i) {
    if (i == step.operands.own) {
      pool_.operands.push_back(at(lane, step.from, step.source.begin));
    } else {
      pool_.operands.push_back(operand(lane, other));
      other += step.operands.stride;
    }
  }
  // If no rank vetoes, results are also written directly to memory that peers lent for them.
  const auto number = static_cast<size_t>(&step - lane.prepared->schedule.steps.data());
  for (const auto& view : lane.views) {
    const auto& peers = lane.prepared->goes_back_to[number];
    if (!has_heard_all_ || std::ranges::find(peers, view.peer) == peers.end()) continue;
    if (std::ranges::find(pool_.operands, view.data) == pool_.operands.end() ||
        view.range.count != step.source.count)
      continue;
    const auto loan = pool_.transport.loan(view.ticket);
    if (loan.data == nullptr) continue;
    pool_.results.push_back(loan.data);
    lane.returned.push_back({view.peer, step.target, loan.place});
  }
  const Scale scale = lane.prepared->schedule.scales_at_owner ? scale_ : Scale{1.0, step.divisor};
  reduce(collective_.dtype, op_, pool_.results, pool_.operands, step.source.count, scale);
}

void Execution::end_segment(Lane& lane) {
  has_heard_all_ = true;
  const Range output = part_of(lane.segment, whole_output_);
  if (verdict_ != 0 || output.count == 0) return;
  const auto& schedule = lane.prepared->schedule;
  Scale scale = schedule.scales_at_owner ? Scale{} : scale_;
  scale.factor *= schedule.divisor;
  if (launch_.edges.drain != nullptr && !lane.is_direct)
    return launch_.edges.drain(launch_.edges.self, output, lane.output, scale);
  if (!is_staged_) return;
  auto* target = lane.is_direct ? lane.output : collective_.output + output.begin * element_bytes_;
  const std::byte* staged = lane.output;
  if (!scale.is_one())
    reduce(collective_.dtype, op_, target, {&staged, 1}, output.count, scale);
  else if (target != staged)
    std::memcpy(target, staged, static_cast<size_t>(output.count * element_bytes_));
}

// Returns true if the segment is complete.
bool Execution::advance_lane(Lane& lane) {
  while (true) {
    if (!lane.has_acted) {
      // Viewed elements are read before this rank's own sends are complete. A peer reads this
      // rank's elements at the same point, so two ranks that waited for their sends first would
      // deadlock.
      if (!has_received(lane) || has_failed_) return false;
      if (lane.views.empty() && !has_sent(lane)) return false;
      if (has_failed_) return false;
      act(lane);
      give_views_back(lane);
      lane.has_acted = true;
    }
    if (!has_sent(lane) || has_failed_) return false;
    if (lane.round_end == lane.prepared->schedule.steps.size()) {
      end_segment(lane);
      return true;
    }
    post_round(lane);
  }
}

OperationState Execution::advance() {
  if (state_ != OperationState::pending) return state_;
  const auto drop_if = [&](auto is_over) {
    size_t kept = 0;
    for (auto& lane : lanes_) {
      if (is_over(*lane))
        drop(std::move(lane));
      else
        std::swap(lanes_[kept++], lane);
    }
    const bool any = kept < lanes_.size();
    lanes_.resize(kept);
    return any;
  };
  if (!is_giving_up_) {
    size_t begun = 0;
    do {
      begun = lanes_.size();
      const bool ended = drop_if([this](Lane& lane) { return advance_lane(lane); });
      begin_segments();
      if (!ended && lanes_.size() == begun) break;
    } while (!has_failed_);
    if (has_failed_) give_up();
  }
  if (is_giving_up_) {
    drop_if([this](Lane& lane) {
      const bool received = has_received(lane), sent = has_sent(lane);
      give_views_back(lane);
      return received && sent;
    });
    if (lanes_.empty()) state_ = OperationState::failed;
  } else if (lanes_.empty() && std::ranges::find(queue_->waiting, this) == queue_->waiting.end()) {
    state_ = verdict_ == 0 ? OperationState::done : OperationState::vetoed;
  }
  return state_;
}

// --- an operation is over -----------------------------------------------------------------------

void Execution::drop(std::unique_ptr<Lane> lane) {
  queue_->bytes_in_flight -= lane->bytes;
  --queue_->lanes;
  pool_.give_back(std::move(lane));
}

void Execution::give_up() {
  if (std::exchange(is_giving_up_, true)) return;
  leave_queue();
  for (auto& lane : lanes_) {
    give_views_back(*lane);
    for (const auto& receive : lane->receives) pool_.transport.cancel(receive.ticket);
    for (const auto ticket : lane->sends) pool_.transport.cancel(ticket);
  }
}

void Execution::release() {
  cancel();
  for (auto& lane : lanes_) {
    // These functions release the tickets that the transport has finished.
    static_cast<void>(has_received(*lane));
    give_views_back(*lane);
    static_cast<void>(has_sent(*lane));
    drop(std::move(lane));
  }
  lanes_.clear();
  state_ = OperationState::done;
  pool_.give_back(this);
}

}  // namespace tutti
