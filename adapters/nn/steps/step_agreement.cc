#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "tutti/adapters/nn/kernels/step_kernels.h"
#include "tutti/adapters/nn/steps/steps.h"
#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/base/error.h"
#include "tutti/kernels/convert.h"
#include "tutti/tensor/absent_memory.h"

namespace tutti::nn {

namespace {

constexpr size_t kSecondsAt = 4;  // index in lane_

void check(const StepOptions& options) {
  const auto& s = options.loss_scale;
  if (!(s.least > 0 && s.first >= s.least && s.growth >= 1 && s.backoff > 0 && s.backoff < 1 &&
        s.clean >= 1 && options.clip >= 0 && options.most_skips >= 0))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("step agreement: loss scale first={}, least={}, growth={}, backoff={}, "
                            "clean={}, clip={}, most_skips={}; expected 0 < least <= first, growth "
                            ">= 1, 0 < backoff < 1, clean >= 1, and none below 0",
                            s.first, s.least, s.growth, s.backoff, s.clean, options.clip,
                            options.most_skips));
}

double norm_of(const std::vector<Parameter>& parameters) {
  double sum = 0;
  for (const auto& parameter : parameters) {
    const auto values = parameter.gradient.span<float>();
    double squares = 0;
#pragma omp simd reduction(+ : squares)
    for (size_t i = 0; i < values.size(); ++i)
      squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    sum += squares;
  }
  return std::sqrt(sum);
}

}  // namespace

StepAgreement::StepAgreement(Communicator& comm, const StepOptions& options)
    : comm_(comm),
      options_(options),
      shares_(comm.size(), options.shares),
      state_(Shape{4}, DataType::f64),
      lane_(kSecondsAt + (options.shares.follow_speed ? static_cast<size_t>(comm.size()) : 0)),
      device_steps_(std::make_unique<KeptStepKernels>()) {
  check(options);
  state_.as<double>()[0] = options.loss_scale.first;
  if (!options.shares.follow_speed) return;
  // The first maximum is the largest number of samples, and the second is minus the smallest.
  std::vector<int64_t> ends{options.shares.samples, -options.shares.samples};
  comm.allreduce_blocking("step agreement shares", ends, ReduceOp::max);
  if (ends[0] != -ends[1])
    throw Error(ErrorCode::mismatch,
                fmt::format("step agreement: shares.samples is from {} to {} on the ranks and {} "
                            "on this one; it must be the same on all",
                            -ends[1], ends[0], options.shares.samples))
        .with_rank(comm.rank());
}

StepAgreement::~StepAgreement() {
  try {
    if (work_) work_.wait();
  } catch (const Error&) {
    // The step that would have used this result is never taken.
  }
}

StepShare StepAgreement::begin() {
  if (options_.shares.follow_speed) {
    begin_ = Clock::now();
    waited_before_ = waited();
  }
  return shares_.of(comm_.rank());
}

void StepAgreement::send(const Loss& loss, bool is_training) {
  if (work_)
    throw Error(ErrorCode::invalid_argument,
                "step agreement: send() came twice in a step; call finish() between")
        .with_rank(comm_.rank());
  const bool is_number = std::isfinite(loss.sum());
  std::fill(lane_.begin(), lane_.end(), 0.0f);
  lane_[0] = static_cast<float>(loss.count());
  lane_[1] = is_number ? static_cast<float>(loss.sum()) : 0.0f;
  lane_[2] = is_number ? 0.0f : 1.0f;
  lane_[3] = is_training ? 1.0f : 0.0f;
  if (options_.shares.follow_speed) {
    const std::chrono::duration<double> all = Clock::now() - begin_;
    if (begin_ != Clock::time_point())
      lane_[kSecondsAt + static_cast<size_t>(comm_.rank())] =
          static_cast<float>(all.count() - (waited() - waited_before_));
    begin_ = {};
  }
  work_ = comm_.allreduce("step agreement", lane_, ReduceOp::sum);
}

StepOutcome StepAgreement::finish(const std::vector<Parameter>& parameters) {
  receive();
  for (const auto& parameter : parameters) require_present(parameter.name, parameter.value);
  if (!parameters.empty() && parameters.front().value.device().kind != DeviceKind::cpu) {
    std::vector<StepOperands> operands;
    for (const auto& parameter : parameters)
      operands.push_back({parameter.value, parameter.gradient});
    auto& steps = device_steps_->of(std::move(operands));
    steps.scale_gradients(1 / (scale() * lane_[0]), options_.clip);
    return settled(steps.outcome().norm);
  }
  std::vector<TensorView> gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.gradient);
  return conclude(norm_of(parameters), gradients);
}

StepOutcome StepAgreement::finish(const std::vector<PlacedTensor>& gradients) {
  receive();
  std::vector<TensorView> here;
  for (const auto& gradient : gradients) here.push_back(gradient.here);
  return conclude(global_norm(comm_, gradients), here);
}

void StepAgreement::receive() {
  if (!work_)
    throw Error(ErrorCode::invalid_argument,
                "step agreement: finish() came before send(), which gives this rank's part")
        .with_rank(comm_.rank());
  std::exchange(work_, Work()).wait();
  const float samples = lane_[0], training = lane_[3];
  if (training != 0 && training != static_cast<float>(comm_.size()))
    throw Error(ErrorCode::mismatch,
                fmt::format("step agreement: {} of {} ranks are in training, the others in "
                            "evaluation; set_training() must be called with the same value on all",
                            training, comm_.size()));
  shares_.add_step(std::span(lane_).subspan(kSecondsAt));
  if (samples == 0)
    throw Error(ErrorCode::invalid_argument,
                "step agreement: no rank had a sample in this step; leave the step out on all");
}

StepOutcome StepAgreement::conclude(double norm, const std::vector<TensorView>& gradients) {
  const double factor = 1 / (scale() * lane_[0]);
  const auto outcome = settled(norm * factor);
  if (!outcome.is_skipped) {
    const bool is_clipped = options_.clip > 0 && outcome.norm > options_.clip;
    const Scale whole{is_clipped ? factor * options_.clip / outcome.norm : factor, 1};
    for (const auto& gradient : gradients)
      tutti::scale(gradient.dtype(), gradient.data(), gradient.count(), whole);
  }
  return outcome;
}

StepOutcome StepAgreement::settled(double norm) {
  const double samples = lane_[0], loss = lane_[1], strange = lane_[2];
  StepOutcome outcome;
  outcome.samples = static_cast<int64_t>(samples);
  outcome.loss = strange == 0 ? loss / samples : std::numeric_limits<double>::quiet_NaN();
  outcome.norm = norm;
  outcome.is_skipped = strange != 0 || !std::isfinite(outcome.norm);
  settle(outcome.is_skipped);
  return outcome;
}

void StepAgreement::settle(bool is_skipped) {
  auto* state = state_.as<double>();
  double &scale = state[0], &clean = state[1], &skipped = state[2], &in_a_row = state[3];
  const auto& options = options_.loss_scale;
  if (!is_skipped) {
    in_a_row = 0;
    if (++clean < static_cast<double>(options.clean)) return;
    clean = 0;
    // A larger scale would make the scaled loss itself infinite.
    if (options.first > options.least) scale = std::min(scale * options.growth, 0x1p100);
    return;
  }
  clean = 0;
  ++skipped;
  if (++in_a_row > static_cast<double>(options_.most_skips))
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("step agreement: {} steps in a row had a loss or a gradient that is not "
                    "finite; lower the learning rate, or look for the layer it comes from",
                    in_a_row));
  if (options.first > options.least && scale <= options.least)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("step agreement: a gradient is not finite at the least loss scale, {}; "
                            "lower the learning rate, or train in bf16 or f32",
                            options.least));
  scale = std::max(scale * options.backoff, options.least);
}

}  // namespace tutti::nn
