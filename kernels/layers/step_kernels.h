#pragma once

#include <memory>
#include <vector>

#include "tutti/kernels/layers/step_factors.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// Which formula of optimizer_steps.h.
enum class StepKind : int32_t { sgd, adam, rms_prop };

/// One parameter, dense and f32, on one device and stream for all. The optimizer's state has no
/// elements where it has none.
struct StepOperands {
  TensorView value, gradient;
  TensorView first = {}, second = {};
  bool is_adapted = true;  // by LARS and LAMB
};

/// The steps of an optimizer over all of its parameters on a device, each a launch or two for any
/// number of tensors, in the order of their stream. One thread.
class StepKernels {
 public:
  virtual ~StepKernels() = default;

  /// What was made of the gradients.
  struct Outcome {
    double norm = 0;          // of the gradients times `factor`; not finite where skipped
    bool is_skipped = false;  // a gradient is no number; they are left as they were
  };
  /// Multiplies all gradients by `factor`, and by less where their norm would be above `clip` (none
  /// if 0). The norm is summed in f64, in an order that is always the same.
  virtual void scale_gradients(double factor, double clip) = 0;
  /// Of the last scale_gradients(). Waits for the stream.
  virtual Outcome outcome() = 0;
  /// A step of every parameter, with the gradients as they are.
  virtual void step(StepKind kind, const StepFactors& factors) = 0;
  /// The same by the norms of each parameter, which are summed in f64, in an order that is always
  /// the same. `first` is the velocity, or the first moment; `second` the second.
  virtual void step(const LarsSettings& settings) = 0;
  virtual void step(const LambSettings& settings) = 0;
};

/// For parameters on one device that is not the CPU, whose steps are optimizer_steps.h. Throws
/// Error(unavailable) as make_layer_kernels(), Error(invalid_argument) for operands that differ in
/// device, stream or count, or are not f32.
std::unique_ptr<StepKernels> make_step_kernels(const std::vector<StepOperands>& operands);

/// Keeps the kernels of the operands that were asked for last, and makes new ones if any operand
/// differs. One thread.
class KeptStepKernels {
 public:
  /// Throws as make_step_kernels().
  StepKernels& of(std::vector<StepOperands> operands);

 private:
  std::vector<StepOperands> operands_;
  std::shared_ptr<StepKernels> kernels_;  // null: there were none
};

}  // namespace tutti
