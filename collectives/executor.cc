#include "tutti/collectives/executor.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tutti/base/check.h"
#include "tutti/kernels/convert.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

namespace {

bool is_reducing(CollectiveKind kind) {
  return kind == CollectiveKind::allreduce || kind == CollectiveKind::reduce ||
         kind == CollectiveKind::reduce_scatter;
}

// Kinds whose elements are independent of each other, so that any range is a collective of its own.
bool is_divisible(CollectiveKind kind) {
  return kind == CollectiveKind::allreduce || kind == CollectiveKind::reduce ||
         kind == CollectiveKind::broadcast;
}

class ScheduledOperation final : public Operation {
 public:
  ScheduledOperation(Transport& transport, const Algorithm& algorithm, const Collective& collective,
                     const Launch& launch, std::span<const int> hosts,
                     const ExecutorOptions& options)
      : transport_(transport),
        collective_(collective),
        launch_(launch),
        verdict_(launch.verdict),
        element_(size_of(collective.dtype)) {
    Problem problem;
    problem.kind = collective.kind;
    problem.rank = transport.rank();
    problem.size = transport.size();
    problem.root = collective.root;
    problem.counts = collective.send_counts;
    problem.recv_counts = collective.recv_counts;
    problem.hosts = hosts;
    problem.in_place = collective.input == collective.output;

    op_ = collective.op == ReduceOp::average ? ReduceOp::sum : collective.op;
    if (is_reducing(collective.kind)) {
      scale_ = collective.scale;
      if (collective.op == ReduceOp::average)
        scale_.divisor *= launch.contributors > 0 ? launch.contributors : transport.size();
    }
    const int64_t total = collective.send_counts.empty() ? 0 : collective.send_counts[0];
    const int64_t length = std::max<int64_t>(1, options.segment_bytes / element_);
    if (is_divisible(collective.kind) && total > length) {
      full_count_ = length;
      full_ = plan(algorithm, problem, length);
      tail_count_ = (total - 1) % length + 1;
      tail_ = plan(algorithm, problem, tail_count_);
      segments_ = (total + length - 1) / length;
    } else {
      tail_ = algorithm.plan(problem);
      tail_count_ = total;
      segments_ = 1;
    }
    active_.resize(
        static_cast<size_t>(std::clamp<int64_t>(options.segments_in_flight, 1, segments_)));
    const auto scratch = std::max(full_.scratch, tail_.scratch) * element_;
    for (auto& segment : active_) segment.scratch.resize(static_cast<size_t>(scratch));
    for (auto& segment : active_) begin(segment);
  }

  ~ScheduledOperation() override {
    for (auto& segment : active_)
      for (const Ticket ticket : segment.tickets) transport_.cancel(ticket);
  }

  OperationState advance() override {
    if (state_ != OperationState::pending) return state_;
    if (cancelled_) return state_ = release() ? OperationState::failed : OperationState::pending;
    bool all_over = true;
    for (auto& segment : active_) {
      while (segment.schedule != nullptr && step(segment)) {
      }
      if (failed_) {
        cancel();
        return advance();
      }
      all_over &= segment.schedule == nullptr;
    }
    if (!all_over) return OperationState::pending;
    return state_ = conclude();
  }

  void cancel() override {
    cancelled_ = true;
    for (auto& segment : active_)
      for (const Ticket ticket : segment.tickets) transport_.cancel(ticket);
  }

 private:
  struct Segment {
    const Schedule* schedule = nullptr;  // null: nothing to do any more
    int64_t base = 0;
    uint32_t number = 0;
    size_t at = 0;   // first step of the current round
    size_t end = 0;  // one past its last
    bool posted = false;
    std::vector<Ticket> tickets;
    std::vector<std::byte> scratch;
  };

  static Schedule plan(const Algorithm& algorithm, Problem problem, int64_t count) {
    const int64_t counts[] = {count};
    problem.counts = counts;
    return algorithm.plan(problem);
  }

  // Takes the next segment that nobody has begun; one without steps (a single rank's) is over at
  // once.
  void begin(Segment& segment) {
    segment.schedule = nullptr;
    while (next_ < segments_) {
      const bool last = next_ + 1 == segments_;
      const Schedule& schedule = last ? tail_ : full_;
      segment.base = next_ * full_count_;
      segment.number = static_cast<uint32_t>(next_++);
      if (launch_.edges.fill != nullptr && launch_.verdict == 0)
        launch_.edges.fill(launch_.edges.self, {segment.base, last ? tail_count_ : full_count_});
      if (schedule.steps.empty()) continue;
      segment.schedule = &schedule;
      segment.end = 0;
      enter_round(segment);
      return;
    }
  }

  void enter_round(Segment& segment) {
    const auto& steps = segment.schedule->steps;
    segment.posted = false;
    segment.at = segment.end;
    if (segment.at == steps.size()) {
      begin(segment);
      return;
    }
    while (segment.end < steps.size() && steps[segment.end].round == steps[segment.at].round)
      ++segment.end;
  }

  std::byte* place(Segment& segment, Slot slot, int64_t offset) {
    switch (slot) {
      case Slot::input:
        return const_cast<std::byte*>(collective_.input) + (segment.base + offset) * element_;
      case Slot::output:
        return collective_.output + (segment.base + offset) * element_;
      case Slot::scratch:
        return segment.scratch.data() + offset * element_;
    }
    return nullptr;
  }

  // True if something moved.
  bool step(Segment& segment) {
    const auto& steps = segment.schedule->steps;
    if (!segment.posted) {
      constexpr uint32_t kRounds = 1u << 12;
      const uint32_t key =
          segment.number * kRounds + static_cast<uint32_t>(steps[segment.at].round);
      for (size_t i = segment.at; i < segment.end; ++i)
        if (steps[i].action == Action::recv)
          segment.tickets.push_back(
              transport_.irecv(steps[i].peer, launch_.tag, key,
                               {place(segment, steps[i].to, steps[i].target.begin),
                                static_cast<size_t>(steps[i].target.count * element_)}));
      for (size_t i = segment.at; i < segment.end; ++i)
        if (steps[i].action == Action::send)
          segment.tickets.push_back(
              transport_.isend(steps[i].peer, {launch_.tag, key, verdict_},
                               {place(segment, steps[i].from, steps[i].source.begin),
                                static_cast<size_t>(steps[i].source.count * element_)}));
      segment.posted = true;
    }
    std::erase_if(segment.tickets, [&](Ticket ticket) {
      const auto state = transport_.test(ticket, &verdict_);
      failed_ |= state == TransferState::failed;
      return state != TransferState::pending;
    });
    if (failed_ || !segment.tickets.empty()) return false;
    for (size_t i = segment.at; i < segment.end; ++i) run_local(segment, steps[i]);
    enter_round(segment);
    return true;
  }

  void run_local(Segment& segment, const Step& step) {
    if (step.action == Action::send || step.action == Action::recv) return;
    auto* source = place(segment, step.from, step.source.begin);
    auto* target = place(segment, step.to, step.target.begin);
    const int64_t count = step.target.count;
    switch (step.action) {
      case Action::copy:
        if (source != target && count > 0)
          std::memmove(target, source, static_cast<size_t>(count * element_));
        break;
      case Action::reduce:
      case Action::reduce_left: {
        const bool left = step.action == Action::reduce_left;
        const std::byte* inputs[] = {left ? source : target, left ? target : source};
        tutti::reduce(collective_.dtype, op_, target, inputs, count);
        break;
      }
      case Action::reduce_ranks: {
        const int rank = transport_.rank();
        std::vector<const std::byte*> inputs;
        for (int r = 0; r < transport_.size(); ++r) {
          const int64_t slot = r < rank ? r : r - 1;
          inputs.push_back(r == rank
                               ? source
                               : place(segment, Slot::scratch, step.operands + slot * step.stride));
        }
        tutti::reduce(collective_.dtype, op_, target, inputs, count,
                      segment.schedule->scales_at_owner ? scale_ : Scale{});
        break;
      }
      default:
        break;
    }
  }

  OperationState conclude() {
    if (verdict_ != 0) return OperationState::vetoed;
    const Scale left = tail_.scales_at_owner ? Scale{} : scale_;
    if (launch_.edges.drain != nullptr) {
      const int64_t count = (segments_ - 1) * full_count_ + tail_count_;
      launch_.edges.drain(launch_.edges.self, {0, count}, left);
    } else if (is_reducing(collective_.kind) && !left.is_one()) {
      int64_t count = 0;
      const auto rank = static_cast<size_t>(transport_.rank());
      if (collective_.kind == CollectiveKind::reduce_scatter)
        count = collective_.send_counts[rank];
      else if (collective_.kind == CollectiveKind::allreduce ||
               transport_.rank() == collective_.root)
        count = collective_.send_counts[0];
      if (count > 0) tutti::scale(collective_.dtype, collective_.output, count, left);
    }
    return OperationState::done;
  }

  // After cancel: true once the transport touches no memory of this operation any more.
  bool release() {
    bool free = true;
    for (auto& segment : active_) {
      std::erase_if(segment.tickets, [&](Ticket ticket) {
        return transport_.test(ticket) != TransferState::pending;
      });
      free &= segment.tickets.empty();
    }
    return free;
  }

  Transport& transport_;
  const Collective collective_;
  const Launch launch_;
  uint32_t verdict_;
  const int64_t element_;
  ReduceOp op_ = ReduceOp::sum;
  Scale scale_;
  Schedule full_, tail_;
  int64_t full_count_ = 0, tail_count_ = 0, segments_ = 1, next_ = 0;
  std::vector<Segment> active_;
  bool failed_ = false;
  bool cancelled_ = false;
  OperationState state_ = OperationState::pending;
};

}  // namespace

std::unique_ptr<Operation> execute(Transport& transport, const Algorithm& algorithm,
                                   const Collective& collective, const Launch& launch,
                                   std::span<const int> hosts, const ExecutorOptions& options) {
  return std::make_unique<ScheduledOperation>(transport, algorithm, collective, launch, hosts,
                                              options);
}

}  // namespace tutti
