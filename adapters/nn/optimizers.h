#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/adapters/nn/layers/parameter.h"

namespace tutti {
class KeptStepKernels;  // adapters/nn/kernels/step_kernels.h
class StepKernels;
enum class StepKind : int32_t;
struct StepFactors;
}  // namespace tutti

namespace tutti::nn {

/// The common part of the optimizers: the parameters, their announcements, the state by name and a
/// learning rate that schedules set. step() uses the gradients but does not change them; zero_grad
/// clears them.
class BaseOptimizer {
 public:
  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// Sets the function that backward calls with the name of each parameter whose gradient is final.
  /// Null stands for no function.
  void on_gradient_ready(const GradientReady& callback);
  /// Returns momenta and counters by name. The handles share memory with the optimizer.
  const std::vector<NamedState>& state() const { return state_; }
  double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double rate) { learning_rate_ = rate; }

 protected:
  BaseOptimizer(std::vector<Parameter> parameters, double learning_rate);
  /// Adds a zeroed tensor for every parameter, named "kind.parameter". Returns the index of the
  /// first tensor in state().
  size_t add_state(const std::string& kind);
  /// Returns whether the parameters are on a device, where device_step() takes the steps.
  bool is_on_device() const;
  /// Takes a step by kernels of the parameters' device. `first` and `second` are the indices in
  /// state() at which the step's moments begin.
  void device_step(StepKind kind, const StepFactors& factors, std::optional<size_t> first,
                   std::optional<size_t> second);
  /// Returns the kernels that run this optimizer's step on the device. `first` and `second`
  /// are the indices at which its state begins. `is_adapted` has one value per parameter, for
  /// steps that adapt the rate by layer. If it is empty, all parameters are adapted.
  StepKernels& device_steps(std::optional<size_t> first, std::optional<size_t> second,
                            const std::vector<bool>& is_adapted = {});
  std::span<float> state_of(size_t first, size_t parameter) const {
    return state_[first + parameter].tensor.span<float>();
  }

  std::vector<Parameter> parameters_;
  std::vector<NamedState> state_;
  double learning_rate_;

 private:
  std::shared_ptr<KeptStepKernels> device_steps_;
};

struct SgdOptions {
  double learning_rate = 0.01;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
};
class Sgd : public BaseOptimizer {
 public:
  Sgd(std::vector<Parameter> parameters, const SgdOptions& options);
  void step();

 private:
  const SgdOptions options_;
  size_t velocity_ = 0;
};

struct AdamOptions {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
};
class Adam : public BaseOptimizer {
 public:
  Adam(std::vector<Parameter> parameters, const AdamOptions& options);
  void step();

 protected:
  Adam(std::vector<Parameter> parameters, const AdamOptions& options, bool decoupled);

 private:
  const AdamOptions options_;
  const bool decoupled_;
  size_t first_moment_ = 0, second_moment_ = 0, steps_ = 0;
};
/// Adam whose weight decay does not pass through the moments.
class AdamW : public Adam {
 public:
  AdamW(std::vector<Parameter> parameters, const AdamOptions& options);
};

struct RmsPropOptions {
  double learning_rate = 0.01;
  double decay = 0.99;
  double epsilon = 1e-8;
  double momentum = 0;
  double weight_decay = 0;
};
class RmsProp : public BaseOptimizer {
 public:
  RmsProp(std::vector<Parameter> parameters, const RmsPropOptions& options);
  void step();

 private:
  const RmsPropOptions options_;
  size_t mean_square_ = 0, velocity_ = 0;
};

/// Describes the whole parameters to an optimizer that uses norms but has only parts of them.
struct Wholes {
  // Shapes of the whole parameters, in order. Empty if the optimizer has whole parameters.
  std::vector<Shape> shapes;
  /// Adds up numbers in place over all ranks that have parts. Each of these ranks makes the same
  /// call.
  std::function<void(std::span<double> sums)> add_up;
};

/// Optimizers with a learning rate per layer, for large batches; see lars_step() and lamb_step().
/// Parameters of one dimension (biases, the weights of norms) use the plain rate and do not decay.
class LayerwiseOptimizer : public BaseOptimizer {
 protected:
  LayerwiseOptimizer(std::vector<Parameter> parameters, double learning_rate, Wholes wholes);
  bool is_adapted(size_t parameter) const;
  std::vector<bool> all_adapted() const;
  /// Returns how many parameters are stepped together. These are all parameters if numbers must be
  /// added up over the ranks, else one.
  size_t together() const { return wholes_.add_up ? parameters_.size() : 1; }
  void add_up(std::span<double> sums) const {
    if (wholes_.add_up) wholes_.add_up(sums);
  }

 private:
  const Wholes wholes_;
};

struct LarsOptions {
  double learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 0;
  double trust = 0.001;
};
class Lars : public LayerwiseOptimizer {
 public:
  Lars(std::vector<Parameter> parameters, const LarsOptions& options, Wholes wholes = {});
  void step();

 private:
  const LarsOptions options_;
  size_t velocity_ = 0;
};

struct LambOptions {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0.01;
};
class Lamb : public LayerwiseOptimizer {
 public:
  Lamb(std::vector<Parameter> parameters, const LambOptions& options, Wholes wholes = {});
  void step();

 private:
  const LambOptions options_;
  size_t first_moment_ = 0, second_moment_ = 0, steps_ = 0;
};

/// Learning rates as functions of the step, counted from 0. Each begins with an optional linear
/// warm-up from base / (warmup + 1) to base over `warmup` steps.
struct ConstantSchedule {
  double base = 0.01;
  int64_t warmup = 0;
  double operator()(int64_t step) const {
    return step < warmup ? base * static_cast<double>(step + 1) / static_cast<double>(warmup + 1)
                         : base;
  }
};

/// base * factor^((step - warmup) / every), with integer division.
struct StepSchedule {
  double base = 0.01;
  int64_t every = 1000;
  double factor = 0.1;
  int64_t warmup = 0;
  double operator()(int64_t step) const {
    if (step < warmup) return ConstantSchedule{base, warmup}(step);
    const int64_t drops = (step - warmup) / every;
    return base * std::pow(factor, static_cast<double>(drops));
  }
};

/// Half a cosine from base to `least`, which it reaches at step `total` (Loshchilov and Hutter
/// 2017, one cycle).
struct CosineSchedule {
  double base = 0.01;
  int64_t total = 1000;
  double least = 0;
  int64_t warmup = 0;
  double operator()(int64_t step) const {
    if (step < warmup) return ConstantSchedule{base, warmup}(step);
    if (step >= total) return least;
    const double part = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
    return least + (base - least) * 0.5 * (1 + std::cos(std::numbers::pi * part));
  }
};

}  // namespace tutti::nn
