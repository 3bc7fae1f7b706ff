#pragma once

#include <memory>
#include <vector>

#include "tutti/adapters/nn/kernels/layer_kernels.h"

namespace tutti {

class PrimitiveCache;
class TensorPool;

/// Layers on the CPU. Products, windows and activations use oneDNN. A primitive is created at the
/// first use of a shape and kept for the life of the object. The other layers are our own loops.
class CpuLayerKernels final : public LayerKernels {
 public:
  /// `threads` is the number of threads of one call.
  explicit CpuLayerKernels(int threads);
  ~CpuLayerKernels() override;

  Device device() const override { return {}; }
  using LayerKernels::make_tensor;
  Tensor make_tensor(const Shape& shape, DataType dtype, StreamRef) override;
  // This declares the other functions of LayerKernels.
#include "tutti/adapters/nn/kernels/layer_overrides-inl.h"

 private:
  /// Returns memory for gradients that are then added to their targets. It only grows.
  float* scratch(int64_t weights, int64_t biases);

  const std::unique_ptr<PrimitiveCache> cache_;
  const std::shared_ptr<TensorPool> pool_;
  std::vector<float> scratch_;
};

}  // namespace tutti
