#include "tutti/collectives/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

namespace {

// A key is the segment's number and the round.
constexpr int kRoundBits = 14;
constexpr int64_t kMostSegments = int64_t{1} << (32 - kRoundBits);
constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

Problem make_problem(const Transport& transport, const Collective& collective,
                     std::span<const int> hosts, bool in_place) {
  return {collective.kind,
          transport.rank(),
          transport.size(),
          collective.root,
          collective.send_counts,
          collective.recv_counts,
          hosts,
          in_place};
}

// What all segments of an operation have in common, fixed when it begins.
struct Layout {
  Layout(const Transport& transport, const Algorithm& algorithm, const Collective& collective,
         const Launch& launch, std::span<const int> hosts, const ExecutorOptions& options);

  // Elements of `which` segment's input and output within the whole.
  Range input_of(int64_t segment) const { return part_of(segment, whole_input); }
  Range output_of(int64_t segment) const { return part_of(segment, whole_output); }
  const Schedule& schedule_of(int64_t segment) const {
    return segment == segments - 1 ? last : first;
  }

  bool is_staged;  // outputs wait in scratch for the verdict
  int64_t whole_input, whole_output;
  int64_t segments = 1;
  int64_t segment_count = 0;  // elements of a segment but the last; 0: there is one segment
  Schedule first, last;       // the last segment may be shorter

 private:
  Range part_of(int64_t segment, int64_t whole) const {
    if (segment_count == 0) return {0, whole};
    const int64_t begin = std::min(segment * segment_count, whole);
    return {begin, std::min(segment_count, whole - begin)};
  }
};

Layout::Layout(const Transport& transport, const Algorithm& algorithm, const Collective& collective,
               const Launch& launch, std::span<const int> hosts, const ExecutorOptions& options)
    : is_staged(reduces(collective.kind) && launch.edges.drain == nullptr) {
  const bool in_place =
      !is_staged && collective.input != nullptr && collective.input == collective.output;
  auto problem = make_problem(transport, collective, hosts, in_place);
  require_valid(problem);
  whole_input = input_count(problem);
  whole_output = output_count(problem);

  const bool is_cut = collective.kind == CollectiveKind::allreduce ||
                      collective.kind == CollectiveKind::reduce ||
                      collective.kind == CollectiveKind::broadcast;
  int64_t count = 0;
  if (is_cut) {
    const int64_t whole = collective.send_counts[0];
    const int64_t wanted = options.segment_bytes / size_of(collective.dtype);
    segment_count = std::max({int64_t{1}, wanted, (whole + kMostSegments - 1) / kMostSegments});
    segments = std::max<int64_t>(1, (whole + segment_count - 1) / segment_count);
    if (segments > 1) {
      problem.counts = std::span(&segment_count, 1);
      first = algorithm.plan(problem);
    }
    count = whole - (segments - 1) * segment_count;
    problem.counts = std::span(&count, 1);
  }
  last = algorithm.plan(problem);
  for (const auto* schedule : {&first, &last})
    TUTTI_CHECK(schedule->steps.empty() || schedule->steps.back().round < 1 << kRoundBits);
}

struct MessageCounts {
  size_t most_in_round = 0;
  int64_t longest = 0;
  int most_operands = 1;

  void add(const Schedule& schedule) {
    size_t in_round = 0;
    int round = 0;
    for (const auto& step : schedule.steps) {
      if (step.round != round) in_round = 0;
      round = step.round;
      most_operands = std::max(most_operands, step.operands.count);
      if (step.action != Action::send && step.action != Action::recv) continue;
      most_in_round = std::max(most_in_round, ++in_round);
      longest = std::max(longest, step.source.count);
    }
  }
};

class Execution final : public Operation {
 public:
  Execution(Transport& transport, const Algorithm& algorithm, const Collective& collective,
            const Launch& launch, std::span<const int> hosts, const ExecutorOptions& options);
  ~Execution() override { give_up(); }

  void begin();
  OperationState advance() override;
  void cancel() override {
    if (state_ == OperationState::pending) give_up();
  }

 private:
  // A place for a segment in flight.
  struct Lane {
    const Schedule* schedule = nullptr;  // null: nothing runs here
    int64_t segment = 0;
    size_t round_begin = 0, round_end = 0;  // the steps of the running round
    std::vector<Ticket> tickets;
    std::byte* scratch = nullptr;
    std::byte* staging = nullptr;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
  };

  void begin_segment(Lane& lane);
  void post_round(Lane& lane);
  bool is_settled(Lane& lane);
  void act(const Lane& lane);
  void reduce_step(const Lane& lane, const Step& step);
  void end_segment(Lane& lane);
  void advance_lane(Lane& lane);
  void give_up();
  bool has_let_go();
  std::byte* at(const Lane& lane, Slot slot, int64_t element) const;

  Transport& transport_;
  const Collective collective_;
  const Launch launch_;
  const Layout layout_;
  const int64_t element_bytes_;
  const ReduceOp op_;  // average is a sum that is divided at the end
  const Scale scale_;
  const bool input_is_readable_;

  std::unique_ptr<std::byte[]> memory_;
  const std::byte* blank_ = nullptr;  // sent instead of an input that must not be read
  std::vector<Lane> lanes_;
  std::vector<const std::byte*> operands_;
  int64_t next_segment_ = 0;
  uint32_t verdict_;
  bool has_failed_ = false;
  bool is_giving_up_ = false;
  OperationState state_ = OperationState::pending;
};

Scale final_scale(const Collective& collective, const Launch& launch, int size) {
  if (!reduces(collective.kind)) return {};
  Scale scale = collective.scale;
  if (collective.op == ReduceOp::average)
    scale.divisor *= launch.contributors > 0 ? launch.contributors : size;
  return scale;
}

Execution::Execution(Transport& transport, const Algorithm& algorithm, const Collective& collective,
                     const Launch& launch, std::span<const int> hosts,
                     const ExecutorOptions& options)
    : transport_(transport),
      collective_(collective),
      launch_(launch),
      layout_(transport, algorithm, collective, launch, hosts, options),
      element_bytes_(size_of(collective.dtype)),
      op_(collective.op == ReduceOp::average ? ReduceOp::sum : collective.op),
      scale_(final_scale(collective, launch, transport.size())),
      input_is_readable_(launch.verdict == 0 || launch.edges.fill != nullptr),
      verdict_(launch.verdict) {
  MessageCounts messages;
  messages.add(layout_.first);
  messages.add(layout_.last);
  operands_.reserve(static_cast<size_t>(messages.most_operands));

  const auto bytes = [&](int64_t count) {
    return aligned(static_cast<size_t>(count * element_bytes_));
  };
  const size_t scratch = bytes(std::max(layout_.first.scratch, layout_.last.scratch));
  const size_t staging = layout_.is_staged ? bytes(layout_.output_of(0).count) : 0;
  const size_t blank = input_is_readable_ ? 0 : bytes(messages.longest);
  const auto lanes = std::clamp<int64_t>(options.segments_in_flight, 1, layout_.segments);
  const size_t total = static_cast<size_t>(lanes) * (scratch + staging) + blank + kAlignment;
  memory_ = std::make_unique_for_overwrite<std::byte[]>(total);
  auto* next = memory_.get() + kAlignment - reinterpret_cast<uintptr_t>(memory_.get()) % kAlignment;
  if (!input_is_readable_) std::memset(next, 0, total - kAlignment);
  blank_ = next;
  next += blank;
  for (int64_t i = 0; i < lanes; ++i) {
    auto& lane = lanes_.emplace_back();
    lane.tickets.reserve(messages.most_in_round);
    lane.scratch = next;
    lane.staging = next + scratch;
    next += scratch + staging;
  }
}

void Execution::begin() {
  for (auto& lane : lanes_) begin_segment(lane);
}

std::byte* Execution::at(const Lane& lane, Slot slot, int64_t element) const {
  std::byte* base = slot == Slot::scratch  ? lane.scratch
                    : slot == Slot::output ? lane.output
                                           : const_cast<std::byte*>(lane.input);
  return base == nullptr ? nullptr : base + element * element_bytes_;
}

// Whoever has seen a segment to its end knows the verdict of all ranks. So all ranks start the
// first segments, one a lane, whatever happens, and no rank starts another one after a veto.
void Execution::begin_segment(Lane& lane) {
  lane.schedule = nullptr;
  if (next_segment_ == layout_.segments) return;
  lane.segment = next_segment_++;
  lane.schedule = &layout_.schedule_of(lane.segment);
  const Range input = layout_.input_of(lane.segment), output = layout_.output_of(lane.segment);
  const auto offset = [&](auto* base, const Range& range) {
    return base == nullptr ? nullptr : base + range.begin * element_bytes_;
  };
  lane.input = offset(collective_.input, input);
  lane.output = layout_.is_staged ? lane.staging : offset(collective_.output, output);
  if (launch_.edges.fill != nullptr && launch_.verdict == 0 && input.count > 0)
    launch_.edges.fill(launch_.edges.self, input, const_cast<std::byte*>(lane.input));
  lane.round_begin = lane.round_end = 0;
  post_round(lane);
}

void Execution::post_round(Lane& lane) {
  const auto& steps = lane.schedule->steps;
  lane.round_begin = lane.round_end;
  if (lane.round_begin == steps.size()) return;
  const int round = steps[lane.round_begin].round;
  while (lane.round_end < steps.size() && steps[lane.round_end].round == round) ++lane.round_end;
  const auto key = static_cast<uint32_t>(lane.segment << kRoundBits) | static_cast<uint32_t>(round);
  const std::span current(steps.data() + lane.round_begin, lane.round_end - lane.round_begin);
  const auto size = [&](const Range& range) {
    return static_cast<size_t>(range.count * element_bytes_);
  };
  for (const auto& step : current) {
    if (step.action != Action::recv) continue;
    auto* target = at(lane, step.to, step.target.begin);
    lane.tickets.push_back(
        transport_.irecv(step.peer, launch_.tag, key, {target, size(step.target)}));
  }
  for (const auto& step : current) {
    if (step.action != Action::send) continue;
    const auto* source = step.from == Slot::input && !input_is_readable_
                             ? blank_
                             : at(lane, step.from, step.source.begin);
    lane.tickets.push_back(
        transport_.isend(step.peer, {launch_.tag, key, verdict_}, {source, size(step.source)}));
  }
}

// True if all messages of the round are done.
bool Execution::is_settled(Lane& lane) {
  auto& tickets = lane.tickets;
  for (size_t i = 0; i < tickets.size();) {
    const auto state = transport_.test(tickets[i], &verdict_);
    if (state == TransferState::pending) {
      ++i;
      continue;
    }
    has_failed_ |= state == TransferState::failed;
    tickets[i] = tickets.back();
    tickets.pop_back();
  }
  return tickets.empty();
}

// After a veto the values mean nothing; only the messages still matter.
void Execution::act(const Lane& lane) {
  if (verdict_ != 0) return;
  for (size_t i = lane.round_begin; i < lane.round_end; ++i) {
    const auto& step = lane.schedule->steps[i];
    if (step.source.count == 0) continue;
    if (step.action == Action::reduce) reduce_step(lane, step);
    if (step.action != Action::copy) continue;
    const auto* source = at(lane, step.from, step.source.begin);
    auto* target = at(lane, step.to, step.target.begin);
    if (source != target)
      std::memmove(target, source, static_cast<size_t>(step.source.count * element_bytes_));
  }
}

void Execution::reduce_step(const Lane& lane, const Step& step) {
  operands_.clear();
  int64_t other = step.operands.begin;
  for (int i = 0; i < step.operands.count; ++i) {
    if (i == step.operands.own) {
      operands_.push_back(at(lane, step.from, step.source.begin));
    } else {
      operands_.push_back(at(lane, Slot::scratch, other));
      other += step.operands.stride;
    }
  }
  const Scale scale = lane.schedule->scales_at_owner ? scale_ : Scale{};
  reduce(collective_.dtype, op_, at(lane, step.to, step.target.begin), operands_, step.source.count,
         scale);
}

void Execution::end_segment(Lane& lane) {
  const Range output = layout_.output_of(lane.segment);
  const bool is_scaled = lane.schedule->scales_at_owner;
  lane.schedule = nullptr;
  if (verdict_ != 0) return;
  const Scale scale = is_scaled ? Scale{} : scale_;
  if (output.count > 0 && launch_.edges.drain != nullptr) {
    launch_.edges.drain(launch_.edges.self, output,
                        collective_.output + output.begin * element_bytes_, scale);
  } else if (output.count > 0 && layout_.is_staged) {
    auto* target = collective_.output + output.begin * element_bytes_;
    const std::byte* staged = lane.staging;
    if (scale.is_one())
      std::memcpy(target, staged, static_cast<size_t>(output.count * element_bytes_));
    else
      reduce(collective_.dtype, op_, target, {&staged, 1}, output.count, scale);
  }
  begin_segment(lane);
}

void Execution::advance_lane(Lane& lane) {
  while (lane.schedule != nullptr && is_settled(lane) && !has_failed_) {
    act(lane);
    if (lane.round_end == lane.schedule->steps.size())
      end_segment(lane);
    else
      post_round(lane);
  }
}

void Execution::give_up() {
  if (std::exchange(is_giving_up_, true)) return;
  for (auto& lane : lanes_)
    for (const auto ticket : lane.tickets) transport_.cancel(ticket);
}

bool Execution::has_let_go() {
  bool all = true;
  for (auto& lane : lanes_) all &= is_settled(lane);
  return all;
}

OperationState Execution::advance() {
  if (state_ != OperationState::pending) return state_;
  if (!is_giving_up_) {
    for (auto& lane : lanes_) advance_lane(lane);
    if (has_failed_) give_up();
  }
  if (is_giving_up_) {
    if (has_let_go()) state_ = OperationState::failed;
  } else if (std::ranges::all_of(lanes_, [](const Lane& lane) { return !lane.schedule; })) {
    state_ = verdict_ == 0 ? OperationState::done : OperationState::vetoed;
  }
  return state_;
}

}  // namespace

OperationPtr execute(Transport& transport, const Algorithm& algorithm, const Collective& collective,
                     const Launch& launch, std::span<const int> hosts,
                     const ExecutorOptions& options) {
  TUTTI_CHECK(algorithm.kind == collective.kind);
  TUTTI_CHECK(launch.verdict == 0 || reduces(collective.kind) ||
              collective.kind == CollectiveKind::barrier);
  if (reduces(collective.kind) && !can_reduce(collective.dtype, collective.op))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} on rank {} of {}: op {} means nothing on {}",
                            to_string(collective.kind), transport.rank(), transport.size(),
                            to_string(collective.op), to_string(collective.dtype)));
  std::unique_ptr<Execution, OperationRelease> execution(
      new Execution(transport, algorithm, collective, launch, hosts, options));
  execution->begin();
  return execution;
}

}  // namespace tutti
