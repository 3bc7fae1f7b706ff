#include "tutti/adapters/nn/optimizers.h"

#include <algorithm>

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/kernels/optimizer_steps.h"
#include "tutti/adapters/nn/kernels/step_kernels.h"
#include "tutti/base/error.h"

namespace tutti::nn {

namespace {

// Returns f32 zeros on the parameter's device. The memory belongs to the parameter's stream,
// because a step may still be running there when the optimizer is destroyed.
Tensor zeros_beside(const Tensor& value) {
  const Tensor zeros(value.shape(), DataType::f32);
  if (value.device().kind == DeviceKind::cpu) return zeros;
  return make_layer_kernels(value.device())->upload(zeros, value.view().stream());
}

}  // namespace

BaseOptimizer::BaseOptimizer(std::vector<Parameter> parameters, double learning_rate)
    : parameters_(std::move(parameters)),
      learning_rate_(learning_rate),
      device_steps_(std::make_shared<KeptStepKernels>()) {}

void BaseOptimizer::on_gradient_ready(const GradientReady& callback) {
  for (auto& parameter : parameters_) *parameter.ready = callback;
}

size_t BaseOptimizer::add_state(const std::string& kind) {
  const size_t first = state_.size();
  for (const auto& parameter : parameters_)
    state_.push_back({kind + "." + parameter.name, zeros_beside(parameter.value)});
  return first;
}

bool BaseOptimizer::is_on_device() const {
  return !parameters_.empty() && parameters_.front().value.device().kind != DeviceKind::cpu;
}

StepKernels& BaseOptimizer::device_steps(std::optional<size_t> first, std::optional<size_t> second,
                                         const std::vector<bool>& is_adapted) {
  std::vector<StepOperands> operands;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& one = operands.emplace_back(StepOperands{parameters_[i].value, parameters_[i].gradient});
    if (first) one.first = state_[*first + i].tensor;
    if (second) one.second = state_[*second + i].tensor;
    one.is_adapted = is_adapted.empty() || is_adapted[i];
  }
  return device_steps_->of(std::move(operands));
}

void BaseOptimizer::device_step(StepKind kind, const StepFactors& factors,
                                std::optional<size_t> first, std::optional<size_t> second) {
  device_steps(first, second).step(kind, factors);
}

Sgd::Sgd(std::vector<Parameter> parameters, const SgdOptions& options)
    : BaseOptimizer(std::move(parameters), options.learning_rate), options_(options) {
  if (options.momentum != 0) velocity_ = add_state("velocity");
}

void Sgd::step() {
  SgdSettings settings;
  settings.learning_rate = static_cast<float>(learning_rate_);
  settings.momentum = static_cast<float>(options_.momentum);
  settings.weight_decay = static_cast<float>(options_.weight_decay);
  settings.nesterov = options_.nesterov;
  if (is_on_device())
    return device_step(StepKind::sgd, factors_of(settings),
                       options_.momentum != 0 ? std::optional(velocity_) : std::nullopt, {});
  for (size_t i = 0; i < parameters_.size(); ++i)
    sgd_step(settings, parameters_[i].value.span<float>(), parameters_[i].gradient.span<float>(),
             options_.momentum != 0 ? state_of(velocity_, i) : std::span<float>());
}

Adam::Adam(std::vector<Parameter> parameters, const AdamOptions& options)
    : Adam(std::move(parameters), options, false) {}

Adam::Adam(std::vector<Parameter> parameters, const AdamOptions& options, bool decoupled)
    : BaseOptimizer(std::move(parameters), options.learning_rate),
      options_(options),
      decoupled_(decoupled) {
  first_moment_ = add_state("first_moment");
  second_moment_ = add_state("second_moment");
  steps_ = state_.size();
  state_.push_back({"steps", Tensor(Shape{1}, DataType::i64)});
}

void Adam::step() {
  AdamSettings settings;
  settings.learning_rate = learning_rate_;
  settings.beta1 = options_.beta1;
  settings.beta2 = options_.beta2;
  settings.epsilon = options_.epsilon;
  settings.weight_decay = options_.weight_decay;
  settings.decoupled = decoupled_;
  settings.step = ++*state_[steps_].tensor.as<int64_t>();
  if (is_on_device())
    return device_step(StepKind::adam, factors_of(settings), first_moment_, second_moment_);
  for (size_t i = 0; i < parameters_.size(); ++i)
    adam_step(settings, parameters_[i].value.span<float>(), parameters_[i].gradient.span<float>(),
              state_of(first_moment_, i), state_of(second_moment_, i));
}

AdamW::AdamW(std::vector<Parameter> parameters, const AdamOptions& options)
    : Adam(std::move(parameters), options, true) {}

RmsProp::RmsProp(std::vector<Parameter> parameters, const RmsPropOptions& options)
    : BaseOptimizer(std::move(parameters), options.learning_rate), options_(options) {
  mean_square_ = add_state("mean_square");
  if (options.momentum != 0) velocity_ = add_state("velocity");
}

void RmsProp::step() {
  RmsPropSettings settings;
  settings.learning_rate = static_cast<float>(learning_rate_);
  settings.decay = static_cast<float>(options_.decay);
  settings.epsilon = static_cast<float>(options_.epsilon);
  settings.momentum = static_cast<float>(options_.momentum);
  settings.weight_decay = static_cast<float>(options_.weight_decay);
  if (is_on_device())
    return device_step(StepKind::rms_prop, factors_of(settings), mean_square_,
                       options_.momentum != 0 ? std::optional(velocity_) : std::nullopt);
  for (size_t i = 0; i < parameters_.size(); ++i)
    rms_prop_step(settings, parameters_[i].value.span<float>(),
                  parameters_[i].gradient.span<float>(), state_of(mean_square_, i),
                  options_.momentum != 0 ? state_of(velocity_, i) : std::span<float>());
}

LayerwiseOptimizer::LayerwiseOptimizer(std::vector<Parameter> parameters, double learning_rate,
                                       Wholes wholes)
    : BaseOptimizer(std::move(parameters), learning_rate), wholes_(std::move(wholes)) {
  if (is_on_device() && wholes_.add_up)
    throw Error(ErrorCode::unavailable,
                "LARS and LAMB step on parts of parameters on the cpu alone, but \"" +
                    parameters_.front().name + "\" is on " +
                    to_string(parameters_.front().value.device()) + "; keep whole ones there");
}

std::vector<bool> LayerwiseOptimizer::all_adapted() const {
  std::vector<bool> all;
  for (size_t i = 0; i < parameters_.size(); ++i) all.push_back(is_adapted(i));
  return all;
}

bool LayerwiseOptimizer::is_adapted(size_t parameter) const {
  return (wholes_.shapes.empty() ? parameters_[parameter].value.shape() : wholes_.shapes[parameter])
             .rank() > 1;
}

Lars::Lars(std::vector<Parameter> parameters, const LarsOptions& options, Wholes wholes)
    : LayerwiseOptimizer(std::move(parameters), options.learning_rate, std::move(wholes)),
      options_(options) {
  velocity_ = add_state("velocity");
}

void Lars::step() {
  const LarsSettings settings{.learning_rate = learning_rate_,
                              .momentum = options_.momentum,
                              .weight_decay = options_.weight_decay,
                              .trust = options_.trust};
  if (is_on_device()) return device_steps(velocity_, {}, all_adapted()).step(settings);
  std::vector<double> squares;  // sums of squares: of each value and each gradient
  for (const auto& parameter : parameters_) {
    squares.push_back(sum_squares(parameter.value.span<float>()));
    squares.push_back(sum_squares(parameter.gradient.span<float>()));
  }
  add_up(squares);
  for (size_t i = 0; i < parameters_.size(); ++i)
    lars_step(settings, is_adapted(i), squares[2 * i], squares[2 * i + 1],
              parameters_[i].value.span<float>(), parameters_[i].gradient.span<float>(),
              state_of(velocity_, i));
}

Lamb::Lamb(std::vector<Parameter> parameters, const LambOptions& options, Wholes wholes)
    : LayerwiseOptimizer(std::move(parameters), options.learning_rate, std::move(wholes)),
      options_(options) {
  first_moment_ = add_state("first_moment");
  second_moment_ = add_state("second_moment");
  steps_ = state_.size();
  state_.push_back({"steps", Tensor(Shape{1}, DataType::i64)});
}

void Lamb::step() {
  const LambSettings settings{.learning_rate = learning_rate_,
                              .beta1 = options_.beta1,
                              .beta2 = options_.beta2,
                              .epsilon = options_.epsilon,
                              .weight_decay = options_.weight_decay,
                              .step = ++*state_[steps_].tensor.as<int64_t>()};
  if (is_on_device())
    return device_steps(first_moment_, second_moment_, all_adapted()).step(settings);
  for (size_t begin = 0; begin < parameters_.size(); begin += together()) {
    const size_t count = std::min(together(), parameters_.size() - begin);
    std::vector<std::vector<float>> updates(count);
    std::vector<double> squares;  // sums of squares: of each value and each update
    for (size_t i = begin; i < begin + count; ++i) {
      const auto value = parameters_[i].value.span<float>();
      auto& update = updates[i - begin];
      update.resize(value.size());
      lamb_update(settings, is_adapted(i), value, parameters_[i].gradient.span<float>(),
                  state_of(first_moment_, i), state_of(second_moment_, i), update);
      squares.push_back(sum_squares(value));
      squares.push_back(sum_squares(update));
    }
    add_up(squares);
    for (size_t i = begin; i < begin + count; ++i)
      lamb_step(settings, is_adapted(i), squares[2 * (i - begin)], squares[2 * (i - begin) + 1],
                parameters_[i].value.span<float>(), updates[i - begin]);
  }
}

}  // namespace tutti::nn
