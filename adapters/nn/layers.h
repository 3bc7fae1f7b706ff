#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tutti/adapters/nn/parameter.h"
#include "tutti/kernels/layers/layer_kernels.h"

namespace tutti::nn {

/// One layer of a Sequential. forward() keeps what backward() needs; backward() adds to the
/// gradients of the parameters and returns the gradient of the input (an empty Tensor if
/// `needs_input` is false). One thread.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual Tensor forward(LayerKernels& kernels, const Tensor& input) = 0;
  virtual Tensor backward(LayerKernels& kernels, const Tensor& output_gradient,
                          bool needs_input) = 0;
  /// Fills the weights from the generator; equal on every machine for an equal generator.
  virtual void initialize(std::mt19937_64&) {}
  virtual std::vector<Parameter*> parameters() { return {}; }
  virtual std::string kind() const = 0;
};

/// [batch, inputs] to [batch, outputs]: weight [outputs, inputs], bias [outputs].
std::unique_ptr<Layer> linear(int64_t inputs, int64_t outputs);

struct Conv2dOptions {
  int64_t stride = 1;
  int64_t padding = 0;
};
/// [batch, in, h, w] to [batch, out, h', w']: weight [out, in, kernel, kernel], bias [out].
std::unique_ptr<Layer> conv2d(int64_t in, int64_t out, int64_t kernel,
                              const Conv2dOptions& options = {});
/// stride 0: the kernel's size.
std::unique_ptr<Layer> max_pool2d(int64_t kernel, int64_t stride = 0);
std::unique_ptr<Layer> average_pool2d(int64_t kernel, int64_t stride = 0);
std::unique_ptr<Layer> relu();
std::unique_ptr<Layer> tanh();
/// [batch, ...] to [batch, everything else].
std::unique_ptr<Layer> flatten();

}  // namespace tutti::nn
