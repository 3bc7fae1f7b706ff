#include "tutti/adapters/nn/layers.h"

#include <fmt/format.h>

#include <cmath>

#include "tutti/base/error.h"

namespace tutti::nn {

namespace {

Tensor zeros(Shape shape) { return Tensor(std::move(shape), DataType::f32); }

void require_shape(const Layer& layer, const Tensor& input, bool good, const char* wanted) {
  if (good && input.dtype() == DataType::f32) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("layer {} got {}{}, want f32{}", layer.kind(), to_string(input.dtype()),
                          input.shape().to_string(), wanted));
}

// Uniform in (-bound, bound), from 24 bits of the generator, so that no library's distribution
// decides.
void fill_uniform(const Tensor& tensor, double bound, std::mt19937_64& generator) {
  for (float& value : tensor.span<float>()) {
    const double unit = static_cast<double>(generator() >> 40) * 0x1p-24;
    value = static_cast<float>((2 * unit - 1) * bound);
  }
}

// Backward functions overwrite; gradients add up over passes.
void add(const Tensor& target, const Tensor& source) {
  const auto from = source.span<float>();
  const auto to = target.span<float>();
  for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

// A layer with a weight and a bias, whose fan-in is the weight's row.
class Weighted : public Layer {
 public:
  Weighted(Shape weight, int64_t outputs) {
    weight_ = {"weight", zeros(weight), zeros(weight), std::make_shared<GradientReady>()};
    bias_ = {"bias", zeros({outputs}), zeros({outputs}), std::make_shared<GradientReady>()};
    weight_pass_ = zeros(weight);
    bias_pass_ = zeros({outputs});
  }
  // He et al. 2015 for layers before a rectifier: uniform with bound sqrt(6 / fan_in); biases zero.
  void initialize(std::mt19937_64& generator) override {
    const auto fan_in = static_cast<double>(weight_.value.shape().row_count());
    fill_uniform(weight_.value, std::sqrt(6.0 / fan_in), generator);
  }
  std::vector<Parameter*> parameters() override { return {&weight_, &bias_}; }

 protected:
  void collect() {
    add(weight_.gradient, weight_pass_);
    add(bias_.gradient, bias_pass_);
  }
  Parameter weight_, bias_;
  Tensor weight_pass_, bias_pass_;  // of one backward pass
  Tensor input_;
};

class Linear final : public Weighted {
 public:
  Linear(int64_t inputs, int64_t outputs)
      : Weighted({outputs, inputs}, outputs), shape_{0, inputs, outputs} {}
  std::string kind() const override {
    return fmt::format("linear({}, {})", shape_.inputs, shape_.outputs);
  }
  Tensor forward(LayerKernels& kernels, const Tensor& input) override {
    require_shape(*this, input, input.shape().rank() == 2 && input.shape()[1] == shape_.inputs,
                  "[batch, inputs]");
    input_ = input;
    shape_.batch = input.shape()[0];
    auto output = zeros({shape_.batch, shape_.outputs});
    kernels.linear_forward(shape_, input.as<float>(), weight_.value.as<float>(),
                           bias_.value.as<float>(), output.as<float>());
    return output;
  }
  Tensor backward(LayerKernels& kernels, const Tensor& gradient, bool needs_input) override {
    auto input_gradient = needs_input ? zeros(input_.shape()) : Tensor();
    kernels.linear_backward(shape_, input_.as<float>(), weight_.value.as<float>(),
                            gradient.as<float>(),
                            needs_input ? input_gradient.as<float>() : nullptr,
                            weight_pass_.as<float>(), bias_pass_.as<float>());
    collect();
    return input_gradient;
  }

 private:
  LinearShape shape_;
};

class Conv2d final : public Weighted {
 public:
  Conv2d(int64_t in, int64_t out, int64_t kernel, const Conv2dOptions& options)
      : Weighted({out, in, kernel, kernel}, out) {
    shape_.input_channels = in;
    shape_.output_channels = out;
    shape_.kernel = kernel;
    shape_.stride = options.stride;
    shape_.padding = options.padding;
  }
  std::string kind() const override {
    return fmt::format("conv2d({}, {}, {})", shape_.input_channels, shape_.output_channels,
                       shape_.kernel);
  }
  Tensor forward(LayerKernels& kernels, const Tensor& input) override {
    const auto& extents = input.shape();
    require_shape(*this, input, extents.rank() == 4 && extents[1] == shape_.input_channels,
                  "[batch, channels, height, width]");
    input_ = input;
    shape_.batch = extents[0];
    shape_.height = extents[2];
    shape_.width = extents[3];
    auto output = zeros(
        {shape_.batch, shape_.output_channels, shape_.output_height(), shape_.output_width()});
    kernels.conv2d_forward(shape_, input.as<float>(), weight_.value.as<float>(),
                           bias_.value.as<float>(), output.as<float>());
    return output;
  }
  Tensor backward(LayerKernels& kernels, const Tensor& gradient, bool needs_input) override {
    auto input_gradient = needs_input ? zeros(input_.shape()) : Tensor();
    kernels.conv2d_backward(shape_, input_.as<float>(), weight_.value.as<float>(),
                            gradient.as<float>(),
                            needs_input ? input_gradient.as<float>() : nullptr,
                            weight_pass_.as<float>(), bias_pass_.as<float>());
    collect();
    return input_gradient;
  }

 private:
  Conv2dShape shape_;
};

class Pool2d final : public Layer {
 public:
  Pool2d(Pooling pooling, int64_t kernel, int64_t stride) {
    shape_.pooling = pooling;
    shape_.kernel = kernel;
    shape_.stride = stride == 0 ? kernel : stride;
  }
  std::string kind() const override {
    return fmt::format("{}_pool2d({})", shape_.pooling == Pooling::max ? "max" : "average",
                       shape_.kernel);
  }
  Tensor forward(LayerKernels& kernels, const Tensor& input) override {
    const auto& extents = input.shape();
    require_shape(*this, input, extents.rank() == 4, "[batch, channels, height, width]");
    shape_.batch = extents[0];
    shape_.channels = extents[1];
    shape_.height = extents[2];
    shape_.width = extents[3];
    workspace_.resize(kernels.pool2d_workspace_bytes(shape_));
    auto output =
        zeros({shape_.batch, shape_.channels, shape_.output_height(), shape_.output_width()});
    kernels.pool2d_forward(shape_, input.as<float>(), output.as<float>(), workspace_.data());
    return output;
  }
  Tensor backward(LayerKernels& kernels, const Tensor& gradient, bool needs_input) override {
    if (!needs_input) return {};
    auto input_gradient = zeros({shape_.batch, shape_.channels, shape_.height, shape_.width});
    kernels.pool2d_backward(shape_, gradient.as<float>(), workspace_.data(),
                            input_gradient.as<float>());
    return input_gradient;
  }

 private:
  Pool2dShape shape_;
  std::vector<std::byte> workspace_;
};

class ActivationLayer final : public Layer {
 public:
  explicit ActivationLayer(Activation activation) : activation_(activation) {}
  std::string kind() const override { return activation_ == Activation::relu ? "relu" : "tanh"; }
  Tensor forward(LayerKernels& kernels, const Tensor& input) override {
    output_ = zeros(input.shape());
    kernels.activation_forward(activation_, input.count(), input.as<float>(), output_.as<float>());
    return output_;
  }
  Tensor backward(LayerKernels& kernels, const Tensor& gradient, bool needs_input) override {
    if (!needs_input) return {};
    auto input_gradient = zeros(output_.shape());
    kernels.activation_backward(activation_, output_.count(), output_.as<float>(),
                                gradient.as<float>(), input_gradient.as<float>());
    return input_gradient;
  }

 private:
  const Activation activation_;
  Tensor output_;
};

class Flatten final : public Layer {
 public:
  std::string kind() const override { return "flatten"; }
  Tensor forward(LayerKernels&, const Tensor& input) override {
    shape_ = input.shape();
    return input.reshaped({shape_[0], shape_.row_count()});
  }
  Tensor backward(LayerKernels&, const Tensor& gradient, bool) override {
    return gradient.reshaped(shape_);
  }

 private:
  Shape shape_;
};

}  // namespace

std::unique_ptr<Layer> linear(int64_t inputs, int64_t outputs) {
  return std::make_unique<Linear>(inputs, outputs);
}
std::unique_ptr<Layer> conv2d(int64_t in, int64_t out, int64_t kernel,
                              const Conv2dOptions& options) {
  return std::make_unique<Conv2d>(in, out, kernel, options);
}
std::unique_ptr<Layer> max_pool2d(int64_t kernel, int64_t stride) {
  return std::make_unique<Pool2d>(Pooling::max, kernel, stride);
}
std::unique_ptr<Layer> average_pool2d(int64_t kernel, int64_t stride) {
  return std::make_unique<Pool2d>(Pooling::average, kernel, stride);
}
std::unique_ptr<Layer> relu() { return std::make_unique<ActivationLayer>(Activation::relu); }
std::unique_ptr<Layer> tanh() { return std::make_unique<ActivationLayer>(Activation::tanh); }
std::unique_ptr<Layer> flatten() { return std::make_unique<Flatten>(); }

}  // namespace tutti::nn
