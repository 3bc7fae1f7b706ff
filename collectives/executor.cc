#include "tutti/collectives/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/collectives/execution.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

namespace {

constexpr int kMostRounds = 1 << 14;  // limited by the bits of a message's key
constexpr size_t kMostPrepared = 64;
constexpr size_t kFirstExecutions = 8;
// A lane with more memory than this frees it after use, because such large operations are rare.
constexpr size_t kMostKeptBytes = 64 << 20;
// Every lane gets at least the memory of the largest segment so far, up to this limit. Segments are
// smaller than the limit; operations that are not split into segments may be larger.
constexpr size_t kMostAlikeBytes = 8 << 20;
constexpr size_t kAlignment = 64;

bool overlaps(const Range& one, const Range& other) {
  return one.count > 0 && other.count > 0 && one.begin < other.end() && other.begin < one.end();
}

bool covers(const Range& whole, const Range& part) {
  return whole.begin <= part.begin && part.end() <= whole.end();
}

// Returns whether the reductions of a round write to memory that this rank sends in the same round.
bool writes_what_it_sends(const std::vector<Step>& steps, int round) {
  const std::span running(std::ranges::lower_bound(steps, round, {}, &Step::round),
                          std::ranges::upper_bound(steps, round, {}, &Step::round));
  return std::ranges::any_of(running, [&](const Step& step) {
    if (step.action != Action::copy && step.action != Action::reduce) return false;
    return std::ranges::any_of(running, [&](const Step& send) {
      // Input and output may be the same memory.
      const bool is_one_memory = (send.from == Slot::scratch) == (step.to == Slot::scratch);
      return send.action == Action::send && is_one_memory && overlaps(send.source, step.target);
    });
  });
}

// Returns whether only reductions of the same round read the received elements. The last of these
// reductions may overwrite the range of scratch into which the elements are received.
bool is_only_reduced(const std::vector<Step>& steps, const Step& received) {
  const Range& place = received.target;
  bool is_replaced = false;
  for (const auto& step : steps) {
    if (step.round < received.round || &step == &received) continue;
    const bool is_later = step.round > received.round;
    if (is_later && is_replaced) return true;
    if (step.action != Action::recv && step.from == Slot::scratch && overlaps(step.source, place))
      return false;
    int64_t begin = step.operands.begin;
    for (int other = 1; other < step.operands.count; ++other, begin += step.operands.stride) {
      const Range operand{begin, step.source.count};
      if (!overlaps(operand, place)) continue;
      if (is_later || is_replaced || !covers(place, operand)) return false;
    }
    if (step.action == Action::send || step.to != Slot::scratch || !overlaps(step.target, place))
      continue;
    if (!covers(step.target, place)) return false;
    if (is_later) return true;  // the range then holds other elements
    is_replaced = true;
  }
  return true;
}

// Returns whether the received elements may stay in the sender's memory until they are reduced.
bool may_be_viewed(const std::vector<Step>& steps, const Step& step, CollectiveKind kind) {
  const bool has_one_layout = kind == CollectiveKind::allreduce || kind == CollectiveKind::reduce;
  return has_one_layout && step.action == Action::recv && step.to == Slot::scratch &&
         is_only_reduced(steps, step) && !writes_what_it_sends(steps, step.round);
}

bool writes_to_output(const Step& step, const Range& range) {
  return step.action != Action::send && step.to == Slot::output && overlaps(step.target, range);
}

// Returns whether the peer of a send returns the results of the sent elements, and no step uses
// their memory in between. Assumes that input and output are the same memory.
bool has_results_come_back(const std::vector<Step>& steps, const Step& sent) {
  if (sent.action != Action::send || sent.from != Slot::input || sent.source.count == 0)
    return false;
  const auto back = std::ranges::find_if(steps, [&](const Step& step) {
    return step.action == Action::recv && step.peer == sent.peer && step.round > sent.round &&
           step.to == Slot::output && step.target == sent.source;
  });
  if (back == steps.end()) return false;
  return std::ranges::none_of(steps, [&](const Step& step) {
    if (&step == &sent || &step == &*back || step.round < sent.round || step.round > back->round)
      return false;
    const bool reads = step.action != Action::recv && step.from != Slot::scratch &&
                       overlaps(step.source, sent.source);
    return reads || writes_to_output(step, sent.source);
  });
}

// Returns the peers to which the result of a reduction is sent unchanged.
std::vector<int> receivers_of_result(const std::vector<Step>& steps, const Step& reduced) {
  std::vector<int> peers;
  if (reduced.action != Action::reduce || reduced.to != Slot::output) return peers;
  for (const auto& sent : steps) {
    if (sent.action != Action::send || sent.from != Slot::output || sent.round <= reduced.round ||
        sent.source != reduced.target)
      continue;
    const bool is_changed = std::ranges::any_of(steps, [&](const Step& step) {
      return &step != &reduced && step.round >= reduced.round && step.round < sent.round &&
             writes_to_output(step, sent.source);
    });
    if (!is_changed) peers.push_back(sent.peer);
  }
  return peers;
}

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

ExecutionPool::ExecutionPool(Transport& used, std::vector<int> host_of,
                             const ExecutorOptions& wanted)
    : transport(used), hosts(std::move(host_of)), options(wanted) {
  operands.reserve(static_cast<size_t>(transport.size()));
  results.reserve(static_cast<size_t>(transport.size()));
}

ExecutionPool::~ExecutionPool() = default;

// --- prepared schedules -------------------------------------------------------------------------

PreparedSchedule::PreparedSchedule(const Algorithm& scheduled_by, const Problem& wanted)
    : algorithm(&scheduled_by),
      problem(wanted),
      counts(wanted.counts.begin(), wanted.counts.end()),
      recv_counts(wanted.recv_counts.begin(), wanted.recv_counts.end()),
      schedule(scheduled_by.plan(wanted)) {
  problem.counts = counts;
  problem.recv_counts = recv_counts;
  size_t in_round = 0;
  int round = 0;
  for (const auto& step : schedule.steps) {
    TUTTI_CHECK(step.round < kMostRounds);
    if (step.round != round) in_round = 0;
    round = step.round;
    if (step.action != Action::send && step.action != Action::recv) continue;
    most_in_round = std::max(most_in_round, ++in_round);
    receives_any |= step.action == Action::recv;
    if (step.action == Action::send) {
      ++sends;
      sent_elements += step.source.count;
    }
    longest = std::max(longest, step.source.count);
  }
  const bool is_allreduce = wanted.kind == CollectiveKind::allreduce;
  for (const auto& step : schedule.steps) {
    is_viewable.push_back(may_be_viewed(schedule.steps, step, wanted.kind));
    comes_back.push_back(is_allreduce && has_results_come_back(schedule.steps, step));
    goes_back_to.push_back(is_allreduce ? receivers_of_result(schedule.steps, step)
                                        : std::vector<int>());
  }
}

bool PreparedSchedule::solves(const Algorithm& wanted, const Problem& other) const {
  return algorithm == &wanted && problem.kind == other.kind && problem.root == other.root &&
         problem.in_place == other.in_place && problem.sums == other.sums &&
         std::ranges::equal(problem.counts, other.counts) &&
         std::ranges::equal(problem.recv_counts, other.recv_counts);
}

std::shared_ptr<const PreparedSchedule> ExecutionPool::prepare(const Algorithm& algorithm,
                                                               const Problem& problem) {
  for (const auto& known : prepared_)
    if (known->solves(algorithm, problem)) return known;
  ++allocations;
  auto prepared = std::make_shared<const PreparedSchedule>(algorithm, problem);
  if (prepared_.size() < kMostPrepared)
    prepared_.push_back(prepared);
  else
    prepared_[next_prepared_++ % kMostPrepared] = prepared;
  return prepared;
}

// --- lanes --------------------------------------------------------------------------------------

std::unique_ptr<Lane> ExecutionPool::take_lane(const PreparedSchedule& prepared,
                                               size_t scratch_bytes, size_t bucket_bytes) {
  const size_t total = std::max(kAlignment, aligned(scratch_bytes) + bucket_bytes);
  // The number of lanes in use varies, and so does the lane that gets a large segment. So all lanes
  // have the same size, and more are created than are needed now. Later operations then need not
  // allocate.
  if (total <= kMostAlikeBytes) lane_bytes_ = std::max(lane_bytes_, total);
  lane_tickets_ = std::max(lane_tickets_, prepared.most_in_round);
  if (free_lanes_.empty()) {
    const size_t more = std::max<size_t>(1, lane_count_);
    lane_count_ += more;
    free_lanes_.reserve(lane_count_);
    for (size_t i = 0; i < more; ++i) {
      free_lanes_.push_back(std::make_unique<Lane>());
      fit(*free_lanes_.back(), lane_bytes_);
    }
  }
  auto lane = std::move(free_lanes_.back());
  free_lanes_.pop_back();
  if (lane->memory_bytes() < total || lane->sends.capacity() < lane_tickets_) {
    for (auto& other : free_lanes_) fit(*other, lane_bytes_);
    fit(*lane, std::max(total, lane_bytes_));
  }
  lane->receives.clear();
  lane->sends.clear();
  lane->views.clear();
  lane->returned.clear();
  lane->scratch = lane->memory->data();
  lane->bucket = lane->scratch + aligned(scratch_bytes);
  return lane;
}

// Allocates what the lane lacks: memory of `bytes` bytes, and space for lane_tickets_ tickets.
void ExecutionPool::fit(Lane& lane, size_t bytes) {
  if (lane.memory_bytes() < bytes) {
    ++allocations;
    lane.memory.reset();
    lane.memory = transport.allocate(bytes);
  }
  if (lane.sends.capacity() < lane_tickets_) {
    ++allocations;
    lane.receives.reserve(lane_tickets_);
    lane.views.reserve(lane_tickets_);
    lane.returned.reserve(lane_tickets_);
    lane.sends.reserve(lane_tickets_);
  }
}

void ExecutionPool::give_back(std::unique_ptr<Lane> lane) {
  if (lane->memory_bytes() > kMostKeptBytes) lane->memory.reset();
  fit(*lane, lane_bytes_);
  free_lanes_.push_back(std::move(lane));
}

// --- operations ---------------------------------------------------------------------------------

Execution& ExecutionPool::take_execution() {
  if (free_executions_.empty()) {
    ++allocations;
    for (size_t more = std::max<size_t>(kFirstExecutions, executions_.size()); more > 0; --more) {
      executions_.push_back(std::make_unique<Execution>(*this));
      free_executions_.push_back(executions_.back().get());
    }
  }
  auto& execution = *free_executions_.back();
  free_executions_.pop_back();
  return execution;
}

Executor::Executor(Transport& transport, std::vector<int> hosts, const ExecutorOptions& options)
    : pool_(std::make_unique<ExecutionPool>(transport, std::move(hosts), options)) {}

Executor::~Executor() = default;

uint64_t Executor::allocations() const { return pool_->allocations; }

Traffic Executor::predict(const Algorithm& algorithm, const Collective& collective,
                          const Launch& launch) {
  auto& execution = pool_->take_execution();
  const auto traffic = execution.predict(algorithm, collective, launch);
  pool_->give_back(&execution);
  return traffic;
}

OperationPtr Executor::start(const Algorithm& algorithm, const Collective& collective,
                             const Launch& launch) {
  TUTTI_CHECK(algorithm.kind == collective.kind);
  TUTTI_CHECK(launch.verdict == 0 || reduces(collective.kind) ||
              collective.kind == CollectiveKind::barrier);
  if (reduces(collective.kind) && !can_reduce(collective.dtype, collective.op))
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} on rank {} of {}: op {} cannot be applied to {}",
                    to_string(collective.kind), pool_->transport.rank(), pool_->transport.size(),
                    to_string(collective.op), to_string(collective.dtype)));
  OperationPtr operation(&pool_->take_execution());
  static_cast<Execution&>(*operation).begin(algorithm, collective, launch);
  return operation;
}

}  // namespace tutti
