// Layers that treat all rows, or all elements, of a tensor in the same way.

#include <fmt/format.h>

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/layers/layers.h"
#include "tutti/adapters/nn/layers/weighted.h"
#include "tutti/base/error.h"

namespace tutti::nn {

namespace {

class Linear final : public Weighted {
 public:
  Linear(int64_t inputs, int64_t outputs, const LinearOptions& options)
      : Weighted({outputs, inputs}, outputs, options.bias, options.deviation),
        inputs_(inputs),
        outputs_(outputs) {}
  std::string kind() const override { return fmt::format("linear({}, {})", inputs_, outputs_); }
  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    const auto& shape = input.shape();
    require_input(input, shape.rank() >= 2 && shape[shape.rank() - 1] == inputs_,
                  "[batch, ..., inputs]");
    context.kept = {input};
    Tensor output =
        pass.kernels.make_tensor(linear_output(shape, weight_.value.shape()), input.dtype());
    pass.kernels.linear_forward(input, weight_.value, bias_.value, output);
    return output;
  }
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    const auto& input = context.kept[0];
    if (wanted.weights) {
      pass.kernels.linear_backward_weights(input, gradient, weight_.gradient, bias_.gradient);
      announce();
    }
    if (!wanted.input) return {};
    Tensor input_gradient = pass.kernels.make_tensor(input.shape(), input.dtype());
    pass.kernels.linear_backward_input(weight_.value, gradient, input_gradient);
    return input_gradient;
  }

 private:
  const int64_t inputs_, outputs_;
};

class ActivationLayer final : public Layer {
 public:
  explicit ActivationLayer(Activation activation) : activation_(activation) {}
  std::string kind() const override {
    return activation_ == Activation::relu   ? "relu"
           : activation_ == Activation::tanh ? "tanh"
                                             : "gelu";
  }
  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    require_input(input, true, "[...]");
    Tensor output = pass.kernels.make_tensor(input.shape(), input.dtype());
    pass.kernels.activation_forward(activation_, input, output);
    context.kept = {keeps_input(activation_) ? input : output};
    return output;
  }
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    if (!wanted.input) return {};
    const auto& kept = context.kept[0];
    Tensor input_gradient = pass.kernels.make_tensor(kept.shape(), kept.dtype());
    pass.kernels.activation_backward(activation_, kept, gradient, input_gradient);
    return input_gradient;
  }

 private:
  const Activation activation_;
};

class LogSoftmax final : public Layer {
 public:
  std::string kind() const override { return "log_softmax"; }
  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    require_input(input, input.shape().rank() >= 2, "[batch, ..., classes]");
    Tensor output = pass.kernels.make_tensor(input.shape(), input.dtype());
    pass.kernels.log_softmax_forward(input, output);
    context.kept = {output};
    return output;
  }
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    if (!wanted.input) return {};
    const auto& output = context.kept[0];
    Tensor input_gradient = pass.kernels.make_tensor(output.shape(), output.dtype());
    pass.kernels.log_softmax_backward(output, gradient, input_gradient);
    return input_gradient;
  }
};

class Dropout final : public Layer {
 public:
  explicit Dropout(double probability) : probability_(probability) {
    if (!(probability >= 0 && probability < 1))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("dropout({}): its probability must be 0 to below 1", probability));
  }
  std::string kind() const override { return fmt::format("dropout({})", probability_); }
  Tensor forward(const Pass& pass, const Tensor& input, Context&) override {
    require_input(input, true, "[batch, ...]");
    return masked(pass, input);
  }
  Tensor backward(const Pass& pass, Context&, const Tensor& gradient, Wanted wanted) override {
    return wanted.input ? masked(pass, gradient) : Tensor();
  }

 private:
  // The backward pass draws the same mask again, because it uses the same key.
  Tensor masked(const Pass& pass, const Tensor& input) const {
    if (!pass.training || probability_ == 0) return input;
    Tensor output = pass.kernels.make_tensor(input.shape(), input.dtype());
    const RandomKey key{
        .seed = pass.seed, .purpose = random_purpose("dropout " + path()), .step = pass.step};
    const auto first = static_cast<uint64_t>(pass.first_row * input.shape().row_count());
    pass.kernels.dropout(key, first, probability_, input, output);
    return output;
  }

  const double probability_;
};

class CastTo final : public Layer {
 public:
  explicit CastTo(DataType dtype) : dtype_(dtype) {}
  std::string kind() const override { return fmt::format("cast_to({})", to_string(dtype_)); }
  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    require_input(input, true, "[...]");
    context.kept = {input};
    return converted(pass, input, dtype_);
  }
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    return wanted.input ? converted(pass, gradient, context.kept[0].dtype()) : Tensor();
  }

 private:
  static Tensor converted(const Pass& pass, const Tensor& input, DataType dtype) {
    if (input.dtype() == dtype) return input;
    Tensor output = pass.kernels.make_tensor(input.shape(), dtype);
    pass.kernels.cast_to(input, output);
    return output;
  }

  const DataType dtype_;
};

class Flatten final : public Layer {
 public:
  std::string kind() const override { return "flatten"; }
  Tensor forward(const Pass&, const Tensor& input, Context& context) override {
    context.kept = {input};
    return input.reshaped({input.shape()[0], input.shape().row_count()});
  }
  Tensor backward(const Pass&, Context& context, const Tensor& gradient, Wanted wanted) override {
    return wanted.input ? gradient.reshaped(context.kept[0].shape()) : Tensor();
  }
};

}  // namespace

std::unique_ptr<Layer> linear(int64_t inputs, int64_t outputs, const LinearOptions& options) {
  return std::make_unique<Linear>(inputs, outputs, options);
}
std::unique_ptr<Layer> relu() { return std::make_unique<ActivationLayer>(Activation::relu); }
std::unique_ptr<Layer> tanh() { return std::make_unique<ActivationLayer>(Activation::tanh); }
std::unique_ptr<Layer> gelu() { return std::make_unique<ActivationLayer>(Activation::gelu); }
std::unique_ptr<Layer> log_softmax() { return std::make_unique<LogSoftmax>(); }
std::unique_ptr<Layer> dropout(double probability) {
  return std::make_unique<Dropout>(probability);
}
std::unique_ptr<Layer> cast_to(DataType dtype) { return std::make_unique<CastTo>(dtype); }
std::unique_ptr<Layer> flatten() { return std::make_unique<Flatten>(); }

}  // namespace tutti::nn
