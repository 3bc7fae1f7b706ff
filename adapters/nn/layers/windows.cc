// Layers that move a window over images.

#include <fmt/format.h>

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/layers/layers.h"
#include "tutti/adapters/nn/layers/weighted.h"

namespace tutti::nn {

namespace {

class Convolution final : public Weighted {
 public:
  Convolution(const Shape& weight, const Conv2dOptions& options)
      : Weighted(weight, weight[0], options.bias),
        options_{.stride = options.stride, .padding = options.padding} {}
  std::string kind() const override {
    const auto& weight = weight_.value.shape();
    return fmt::format("conv{}d({}, {}, {})", weight.rank() - 2, weight[1], weight[0], weight[2]);
  }
  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    const auto& weight = weight_.value.shape();
    require_input(input, input.shape().rank() == weight.rank() && input.shape()[1] == weight[1],
                  weight.rank() == 4 ? "[batch, channels, height, width]"
                                     : "[batch, channels, depth, height, width]");
    context.kept = {input};
    Tensor output = pass.kernels.make_tensor(
        convolution_output(convolution_shape(options_, input.shape(), weight)), input.dtype());
    pass.kernels.convolution_forward(options_, input, weight_.value, bias_.value, output);
    return output;
  }
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    const auto& input = context.kept[0];
    if (wanted.weights) {
      pass.kernels.convolution_backward_weights(options_, input, gradient, weight_.gradient,
                                                bias_.gradient);
      announce();
    }
    if (!wanted.input) return {};
    Tensor input_gradient = pass.kernels.make_tensor(input.shape(), input.dtype());
    pass.kernels.convolution_backward_input(options_, weight_.value, gradient, input_gradient);
    return input_gradient;
  }

 private:
  const ConvolutionOptions options_;
};

class Pool2d final : public Layer {
 public:
  explicit Pool2d(const PoolingOptions& options) : options_(options) {}
  std::string kind() const override {
    return fmt::format("{}_pool2d({})", options_.pooling == Pooling::max ? "max" : "average",
                       options_.kernel);
  }
  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    require_input(input, input.shape().rank() == 4, "[batch, channels, height, width]");
    Tensor output = pass.kernels.make_tensor(pooling_output(pooling_shape(options_, input.shape())),
                                             input.dtype());
    const Tensor workspace = pass.kernels.make_tensor(
        Shape{pass.kernels.pooling_workspace_bytes(options_, input.shape())}, DataType::u8);
    pass.kernels.pooling_forward(options_, input, output, workspace);
    context.kept = {input, workspace};
    return output;
  }
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    if (!wanted.input) return {};
    Tensor input_gradient =
        pass.kernels.make_tensor(context.kept[0].shape(), context.kept[0].dtype());
    pass.kernels.pooling_backward(options_, gradient, context.kept[1], input_gradient);
    return input_gradient;
  }

 private:
  const PoolingOptions options_;
};

// Averages over windows as large as the image.
class GlobalAveragePool final : public Layer {
 public:
  std::string kind() const override { return "global_average_pool"; }
  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    const auto& shape = input.shape();
    require_input(input, shape.rank() == 4 && shape[2] * shape[3] > 0,
                  "[batch, channels, height, width]");
    context.kept = {input};
    Tensor output = pass.kernels.make_tensor(Shape{shape[0], shape[1]}, input.dtype());
    pass.kernels.global_average_forward(input, output);
    return output;
  }
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    if (!wanted.input) return {};
    Tensor input_gradient =
        pass.kernels.make_tensor(context.kept[0].shape(), context.kept[0].dtype());
    pass.kernels.global_average_backward(gradient, input_gradient);
    return input_gradient;
  }
};

std::unique_ptr<Layer> pool2d(Pooling pooling, int64_t kernel, int64_t stride, int64_t padding) {
  return std::make_unique<Pool2d>(PoolingOptions{.pooling = pooling,
                                                 .kernel = kernel,
                                                 .stride = stride == 0 ? kernel : stride,
                                                 .padding = padding});
}

}  // namespace

std::unique_ptr<Layer> conv2d(int64_t in, int64_t out, int64_t kernel,
                              const Conv2dOptions& options) {
  return std::make_unique<Convolution>(Shape{out, in, kernel, kernel}, options);
}
std::unique_ptr<Layer> conv3d(int64_t in, int64_t out, int64_t kernel,
                              const Conv2dOptions& options) {
  return std::make_unique<Convolution>(Shape{out, in, kernel, kernel, kernel}, options);
}
std::unique_ptr<Layer> global_average_pool() { return std::make_unique<GlobalAveragePool>(); }
std::unique_ptr<Layer> max_pool2d(int64_t kernel, int64_t stride, int64_t padding) {
  return pool2d(Pooling::max, kernel, stride, padding);
}
std::unique_ptr<Layer> average_pool2d(int64_t kernel, int64_t stride, int64_t padding) {
  return pool2d(Pooling::average, kernel, stride, padding);
}

}  // namespace tutti::nn
