#include <fmt/format.h>

#include <algorithm>

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/layers/layers.h"
#include "tutti/adapters/nn/layers/weighted.h"
#include "tutti/core/communicator.h"

namespace tutti::nn {

namespace {

// The common part of batch norm and layer norm: a weight and a bias per feature.
class Norm : public Layer {
 public:
  explicit Norm(int64_t features, double initial_weight)
      : features_(features),
        initial_weight_(static_cast<float>(initial_weight)),
        weight_(make_parameter("weight", Shape{features})),
        bias_(make_parameter("bias", Shape{features})) {}
  void initialize(uint64_t) override {
    const auto weights = weight_.value.span<float>();
    std::fill(weights.begin(), weights.end(), initial_weight_);
  }
  std::vector<Parameter*> parameters() override { return {&weight_, &bias_}; }

 protected:
  const int64_t features_;
  const float initial_weight_;
  Parameter weight_, bias_;
};

// With a communicator, the moments are those of all ranks' batches.
class BatchNorm final : public Norm {
 public:
  BatchNorm(Communicator* comm, int64_t channels, const BatchNormOptions& options)
      : Norm(channels, options.initial_weight),
        comm_(comm),
        options_(options),
        running_mean_{"running_mean", Tensor(Shape{channels}, DataType::f32)},
        running_variance_{"running_variance", Tensor(Shape{channels}, DataType::f32)} {
    const auto variances = running_variance_.tensor.span<float>();
    std::fill(variances.begin(), variances.end(), 1.0f);
  }
  std::string kind() const override {
    return fmt::format("{}batch_norm({})", comm_ ? "sync_" : "", features_);
  }
  std::vector<NamedState*> buffers() override { return {&running_mean_, &running_variance_}; }

  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    require_input(input, input.shape().rank() >= 2 && input.shape()[1] == features_,
                  "[batch, channels, ...]");
    const Tensor mean = pass.kernels.make_tensor(Shape{features_}, DataType::f32);
    const Tensor inverse = pass.kernels.make_tensor(Shape{features_}, DataType::f32);
    if (pass.training) {
      const Tensor moments = pass.kernels.make_tensor(Shape{1 + 2 * features_}, DataType::f64);
      pass.kernels.batch_norm_moments(input, moments);
      add_over_ranks("forward", moments);
      pass.kernels.batch_norm_statistics(moments, options_.epsilon, options_.momentum, mean,
                                         inverse, running_mean_.tensor, running_variance_.tensor);
    } else {
      pass.kernels.batch_norm_running_statistics(running_mean_.tensor, running_variance_.tensor,
                                                 options_.epsilon, mean, inverse);
    }
    Tensor output = pass.kernels.make_tensor(input.shape(), input.dtype());
    pass.kernels.batch_norm_forward(input, mean, inverse, weight_.value, bias_.value, output);
    context.kept = {input, mean, inverse, Tensor()};
    return output;
  }

  // The input's gradient needs the moments of all ranks, and the weights' gradients need those of
  // this rank. The first pass that asks for either gradient computes this rank's moments.
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    const auto &input = context.kept[0], &mean = context.kept[1], &inverse = context.kept[2];
    auto& moments = context.kept[3];
    if (!moments) {
      moments = pass.kernels.make_tensor(Shape{1 + 2 * features_}, DataType::f64);
      pass.kernels.batch_norm_backward_moments(input, mean, inverse, gradient, moments);
    }
    Tensor input_gradient;
    if (wanted.input) {
      // In evaluation the mean and the variance are constants, so the gradient has no
      // terms for them.
      Tensor joined = pass.training ? moments : Tensor();
      if (pass.training && comm_) {
        joined = copy_of(pass, moments);
        add_over_ranks("backward", joined);
      }
      input_gradient = pass.kernels.make_tensor(input.shape(), input.dtype());
      pass.kernels.batch_norm_backward_input(input, mean, inverse, weight_.value, gradient, joined,
                                             input_gradient);
    }
    if (wanted.weights) {
      pass.kernels.batch_norm_backward_weights(moments, weight_.gradient, bias_.gradient);
      moments = {};
      announce();
    }
    return input_gradient;
  }

 private:
  void add_over_ranks(const char* direction, const Tensor& moments) const {
    if (comm_)
      comm_->allreduce_blocking(fmt::format("batch norm {} {}", path(), direction), moments,
                                ReduceOp::sum);
  }

  Communicator* const comm_;  // null: uses only this rank's batch
  const BatchNormOptions options_;
  NamedState running_mean_, running_variance_;
};

class LayerNorm final : public Norm {
 public:
  LayerNorm(int64_t features, double epsilon) : Norm(features, 1), epsilon_(epsilon) {}
  std::string kind() const override { return fmt::format("layer_norm({})", features_); }

  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    const auto& shape = input.shape();
    require_input(input, shape.rank() >= 2 && shape[shape.rank() - 1] == features_,
                  "[batch, ..., features]");
    const Tensor statistics =
        pass.kernels.make_tensor(Shape{input.count() / features_, 2}, DataType::f32);
    Tensor output = pass.kernels.make_tensor(shape, input.dtype());
    pass.kernels.layer_norm_forward(epsilon_, input, weight_.value, bias_.value, output,
                                    statistics);
    context.kept = {input, statistics};
    return output;
  }
  Tensor backward(const Pass& pass, Context& context, const Tensor& gradient,
                  Wanted wanted) override {
    const auto &input = context.kept[0], &statistics = context.kept[1];
    if (wanted.weights) {
      pass.kernels.layer_norm_backward_weights(input, statistics, gradient, weight_.gradient,
                                               bias_.gradient);
      announce();
    }
    if (!wanted.input) return {};
    Tensor input_gradient = pass.kernels.make_tensor(input.shape(), input.dtype());
    pass.kernels.layer_norm_backward_input(input, statistics, weight_.value, gradient,
                                           input_gradient);
    return input_gradient;
  }

 private:
  const double epsilon_;
};

}  // namespace

std::unique_ptr<Layer> batch_norm(int64_t channels, const BatchNormOptions& options) {
  return std::make_unique<BatchNorm>(nullptr, channels, options);
}
std::unique_ptr<Layer> sync_batch_norm(Communicator& comm, int64_t channels,
                                       const BatchNormOptions& options) {
  return std::make_unique<BatchNorm>(&comm, channels, options);
}
std::unique_ptr<Layer> layer_norm(int64_t features, double epsilon) {
  return std::make_unique<LayerNorm>(features, epsilon);
}

}  // namespace tutti::nn
