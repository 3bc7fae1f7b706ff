#pragma once

#include <memory>
#include <vector>

#include "tutti/adapters/nn/kernels/cuda/layers/kernel_list.h"
#include "tutti/adapters/nn/kernels/step_kernels.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti::cuda {

/// Steps of an optimizer on a GPU, by the kernels of step_tile.h. Their tables are created once, in
/// the device's memory. A step sends its numbers through pinned memory and never blocks.
class GpuSteps final : public StepKernels {
 public:
  /// `runtime` and the operands are borrowed.
  GpuSteps(DeviceRuntime& runtime, std::shared_ptr<Launcher> launcher,
           const std::vector<StepOperands>& operands);
  ~GpuSteps() override;

  void scale_gradients(double factor, double clip) override;
  Outcome outcome() override;
  void step(StepKind kind, const StepFactors& factors) override;
  void step(const LarsSettings& settings) override { step(layer_step_of(settings)); }
  void step(const LambSettings& settings) override { step(layer_step_of(settings)); }

 private:
  void step(LayerStep step);
  /// Copies bytes to the device in the order of `stream_`. Pinned memory holds them until the copy
  /// is complete.
  void send(void* to, const void* from, size_t bytes);

  DeviceRuntime& runtime_;
  const std::shared_ptr<Launcher> launcher_;
  const Device device_;
  const StreamRef stream_;
  std::byte* memory_ = nullptr;  // tables, tiles, their sums and the controls
  StepTable table_ = {};
  int32_t tensor_count_ = 0;
  double* layer_squares_ = nullptr;
  double* layer_rates_ = nullptr;
  StepControl* scaling_ = nullptr;  // control of scale_gradients(), in the device's memory
  StepControl* stepping_ = nullptr;
};

}  // namespace tutti::cuda
