#pragma once

#include <memory>
#include <vector>

#include "tutti/adapters/nn/kernels/step_factors.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// Selects a formula of optimizer_steps.h.
enum class StepKind : int32_t { sgd, adam, rms_prop };

/// One parameter, dense and f32. All operands are on one device and stream. `first` and `second`
/// are the optimizer's state. A tensor that the optimizer does not use has no elements.
struct StepOperands {
  TensorView value, gradient;
  TensorView first = {}, second = {};
  bool is_adapted = true;  // true if LARS and LAMB adapt the parameter's rate
};

/// An optimizer's steps over all of its parameters on a device. Each step makes a few kernel
/// launches, however many tensors there are, in the order of the tensors' stream. One thread uses
/// an object.
class StepKernels {
 public:
  virtual ~StepKernels() = default;

  /// Result of scale_gradients().
  struct Outcome {
    double norm = 0;          // norm of the gradients times `factor`; not finite if skipped
    bool is_skipped = false;  // true if a gradient is not finite; all gradients are unchanged then
  };
  /// Multiplies all gradients by `factor`, or by less if their norm would otherwise exceed `clip`
  /// (0 means no clipping). The norm is summed in f64, always in the same order.
  virtual void scale_gradients(double factor, double clip) = 0;
  /// Returns the result of the last scale_gradients(). Waits for the stream.
  virtual Outcome outcome() = 0;
  /// Updates every parameter, using the gradients as they are.
  virtual void step(StepKind kind, const StepFactors& factors) = 0;
  /// Updates every parameter using its norms, which are summed in f64, always in the same order.
  /// `first` is LARS's velocity or LAMB's first moment, `second` is LAMB's second moment.
  virtual void step(const LarsSettings& settings) = 0;
  virtual void step(const LambSettings& settings) = 0;
};

/// Returns kernels for parameters on one device other than the CPU; for the CPU see
/// optimizer_steps.h. Throws Error(unavailable) like make_layer_kernels(), and
/// Error(invalid_argument) for operands that differ in device, stream or count, or are not f32.
std::unique_ptr<StepKernels> make_step_kernels(const std::vector<StepOperands>& operands);

/// Keeps the kernels of the last operands, and makes new ones if any operand differs. One thread
/// uses an object.
class KeptStepKernels {
 public:
  /// Returns the kernels for `operands`. Throws like make_step_kernels().
  StepKernels& of(std::vector<StepOperands> operands);

 private:
  std::vector<StepOperands> operands_;
  std::shared_ptr<StepKernels> kernels_;  // null before the first call
};

}  // namespace tutti
