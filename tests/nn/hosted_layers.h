#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/tensor/tensor.h"

namespace tutti::test {

/// The tensors of one call, on the device.
class HostedCall {
 public:
  explicit HostedCall(LayerKernels& device) : device_(device) {}
  ConstTensorView in(const ConstTensorView& host) { return there(host.view()); }
  TensorView out(const TensorView& host) {
    const auto view = there(host);
    if (host.data() != nullptr) outputs_.push_back({host, view});
    return view;
  }
  void finish() {
    for (const auto& [host, view] : outputs_) copy_to_host(host.data(), view);
  }

 private:
  TensorView there(const TensorView& host) {
    if (host.data() == nullptr) return host;
    return kept_.emplace_back(device_.upload(Tensor(host, nullptr))).view();
  }

  LayerKernels& device_;
  std::vector<Tensor> kept_;
  std::vector<std::pair<TensorView, TensorView>> outputs_;
};

/// Runs a device's layers on host tensors: each call copies its tensors to the device and back. The
/// suites of the CPU's layers can then test the device's.
class HostedLayers final : public LayerKernels {
 public:
  explicit HostedLayers(Device device) : device_(make_layer_kernels(device)) {}
  Device device() const override { return {}; }
  using LayerKernels::make_tensor;
  Tensor make_tensor(const Shape& shape, DataType dtype, StreamRef) override {
    return Tensor(shape, dtype);
  }
  void fill_zero(const TensorView& tensor) override {
    HostedCall call(*device_);
    device_->fill_zero(call.out(tensor));
    call.finish();
  }
  void linear_forward(const ConstTensorView& input, const ConstTensorView& weight,
                      const ConstTensorView& bias, const TensorView& output) override {
    HostedCall call(*device_);
    device_->linear_forward(call.in(input), call.in(weight), call.in(bias), call.out(output));
    call.finish();
  }
  void linear_backward_input(const ConstTensorView& weight, const ConstTensorView& output_gradient,
                             const TensorView& input_gradient) override {
    HostedCall call(*device_);
    device_->linear_backward_input(call.in(weight), call.in(output_gradient),
                                   call.out(input_gradient));
    call.finish();
  }
  void linear_backward_weights(const ConstTensorView& input, const ConstTensorView& output_gradient,
                               const TensorView& weight_gradient,
                               const TensorView& bias_gradient) override {
    HostedCall call(*device_);
    device_->linear_backward_weights(call.in(input), call.in(output_gradient),
                                     call.out(weight_gradient), call.out(bias_gradient));
    call.finish();
  }
  void convolution_forward(const ConvolutionOptions& options, const ConstTensorView& input,
                           const ConstTensorView& weight, const ConstTensorView& bias,
                           const TensorView& output) override {
    HostedCall call(*device_);
    device_->convolution_forward(options, call.in(input), call.in(weight), call.in(bias),
                                 call.out(output));
    call.finish();
  }
  void convolution_backward_input(const ConvolutionOptions& options, const ConstTensorView& weight,
                                  const ConstTensorView& output_gradient,
                                  const TensorView& input_gradient) override {
    HostedCall call(*device_);
    device_->convolution_backward_input(options, call.in(weight), call.in(output_gradient),
                                        call.out(input_gradient));
    call.finish();
  }
  void convolution_backward_weights(const ConvolutionOptions& options, const ConstTensorView& input,
                                    const ConstTensorView& output_gradient,
                                    const TensorView& weight_gradient,
                                    const TensorView& bias_gradient) override {
    HostedCall call(*device_);
    device_->convolution_backward_weights(options, call.in(input), call.in(output_gradient),
                                          call.out(weight_gradient), call.out(bias_gradient));
    call.finish();
  }
  int64_t pooling_workspace_bytes(const PoolingOptions& options, const Shape& input) override {
    return device_->pooling_workspace_bytes(options, input);
  }
  void pooling_forward(const PoolingOptions& options, const ConstTensorView& input,
                       const TensorView& output, const TensorView& workspace) override {
    HostedCall call(*device_);
    device_->pooling_forward(options, call.in(input), call.out(output), call.out(workspace));
    call.finish();
  }
  void pooling_backward(const PoolingOptions& options, const ConstTensorView& output_gradient,
                        const ConstTensorView& workspace,
                        const TensorView& input_gradient) override {
    HostedCall call(*device_);
    device_->pooling_backward(options, call.in(output_gradient), call.in(workspace),
                              call.out(input_gradient));
    call.finish();
  }
  void global_average_forward(const ConstTensorView& input, const TensorView& output) override {
    HostedCall call(*device_);
    device_->global_average_forward(call.in(input), call.out(output));
    call.finish();
  }
  void global_average_backward(const ConstTensorView& output_gradient,
                               const TensorView& input_gradient) override {
    HostedCall call(*device_);
    device_->global_average_backward(call.in(output_gradient), call.out(input_gradient));
    call.finish();
  }
  void activation_forward(Activation activation, const ConstTensorView& input,
                          const TensorView& output) override {
    HostedCall call(*device_);
    device_->activation_forward(activation, call.in(input), call.out(output));
    call.finish();
  }
  void activation_backward(Activation activation, const ConstTensorView& kept,
                           const ConstTensorView& output_gradient,
                           const TensorView& input_gradient) override {
    HostedCall call(*device_);
    device_->activation_backward(activation, call.in(kept), call.in(output_gradient),
                                 call.out(input_gradient));
    call.finish();
  }
  void softmax_cross_entropy_forward(const ConstTensorView& logits, const ConstTensorView& labels,
                                     const TensorView& log_probabilities,
                                     const TensorView& losses) override {
    HostedCall call(*device_);
    device_->softmax_cross_entropy_forward(call.in(logits), call.in(labels),
                                           call.out(log_probabilities), call.out(losses));
    call.finish();
  }
  void softmax_cross_entropy_backward(const ConstTensorView& log_probabilities,
                                      const ConstTensorView& labels, float scale,
                                      const TensorView& logit_gradient) override {
    HostedCall call(*device_);
    device_->softmax_cross_entropy_backward(call.in(log_probabilities), call.in(labels), scale,
                                            call.out(logit_gradient));
    call.finish();
  }
  void negative_log_likelihood_forward(const ConstTensorView& input, const ConstTensorView& labels,
                                       const TensorView& losses) override {
    HostedCall call(*device_);
    device_->negative_log_likelihood_forward(call.in(input), call.in(labels), call.out(losses));
    call.finish();
  }
  void negative_log_likelihood_backward(const ConstTensorView& labels, float scale,
                                        const TensorView& input_gradient) override {
    HostedCall call(*device_);
    device_->negative_log_likelihood_backward(call.in(labels), scale, call.out(input_gradient));
    call.finish();
  }
  void squared_error_forward(const ConstTensorView& input, const ConstTensorView& target,
                             const TensorView& losses) override {
    HostedCall call(*device_);
    device_->squared_error_forward(call.in(input), call.in(target), call.out(losses));
    call.finish();
  }
  void squared_error_backward(const ConstTensorView& input, const ConstTensorView& target,
                              float scale, const TensorView& input_gradient) override {
    HostedCall call(*device_);
    device_->squared_error_backward(call.in(input), call.in(target), scale,
                                    call.out(input_gradient));
    call.finish();
  }
  void log_softmax_forward(const ConstTensorView& input, const TensorView& output) override {
    HostedCall call(*device_);
    device_->log_softmax_forward(call.in(input), call.out(output));
    call.finish();
  }
  void log_softmax_backward(const ConstTensorView& output, const ConstTensorView& output_gradient,
                            const TensorView& input_gradient) override {
    HostedCall call(*device_);
    device_->log_softmax_backward(call.in(output), call.in(output_gradient),
                                  call.out(input_gradient));
    call.finish();
  }
  void batch_norm_moments(const ConstTensorView& input, const TensorView& moments) override {
    HostedCall call(*device_);
    device_->batch_norm_moments(call.in(input), call.out(moments));
    call.finish();
  }
  void batch_norm_statistics(const ConstTensorView& moments, double epsilon, double momentum,
                             const TensorView& mean, const TensorView& inverse_deviation,
                             const TensorView& running_mean,
                             const TensorView& running_variance) override {
    HostedCall call(*device_);
    device_->batch_norm_statistics(call.in(moments), epsilon, momentum, call.out(mean),
                                   call.out(inverse_deviation), call.out(running_mean),
                                   call.out(running_variance));
    call.finish();
  }
  void batch_norm_running_statistics(const ConstTensorView& running_mean,
                                     const ConstTensorView& running_variance, double epsilon,
                                     const TensorView& mean,
                                     const TensorView& inverse_deviation) override {
    HostedCall call(*device_);
    device_->batch_norm_running_statistics(call.in(running_mean), call.in(running_variance),
                                           epsilon, call.out(mean), call.out(inverse_deviation));
    call.finish();
  }
  void batch_norm_forward(const ConstTensorView& input, const ConstTensorView& mean,
                          const ConstTensorView& inverse_deviation, const ConstTensorView& weight,
                          const ConstTensorView& bias, const TensorView& output) override {
    HostedCall call(*device_);
    device_->batch_norm_forward(call.in(input), call.in(mean), call.in(inverse_deviation),
                                call.in(weight), call.in(bias), call.out(output));
    call.finish();
  }
  void batch_norm_backward_moments(const ConstTensorView& input, const ConstTensorView& mean,
                                   const ConstTensorView& inverse_deviation,
                                   const ConstTensorView& output_gradient,
                                   const TensorView& moments) override {
    HostedCall call(*device_);
    device_->batch_norm_backward_moments(call.in(input), call.in(mean), call.in(inverse_deviation),
                                         call.in(output_gradient), call.out(moments));
    call.finish();
  }
  void batch_norm_backward_input(const ConstTensorView& input, const ConstTensorView& mean,
                                 const ConstTensorView& inverse_deviation,
                                 const ConstTensorView& weight,
                                 const ConstTensorView& output_gradient,
                                 const ConstTensorView& moments,
                                 const TensorView& input_gradient) override {
    HostedCall call(*device_);
    device_->batch_norm_backward_input(call.in(input), call.in(mean), call.in(inverse_deviation),
                                       call.in(weight), call.in(output_gradient), call.in(moments),
                                       call.out(input_gradient));
    call.finish();
  }
  void batch_norm_backward_weights(const ConstTensorView& moments,
                                   const TensorView& weight_gradient,
                                   const TensorView& bias_gradient) override {
    HostedCall call(*device_);
    device_->batch_norm_backward_weights(call.in(moments), call.out(weight_gradient),
                                         call.out(bias_gradient));
    call.finish();
  }
  void layer_norm_forward(double epsilon, const ConstTensorView& input,
                          const ConstTensorView& weight, const ConstTensorView& bias,
                          const TensorView& output, const TensorView& statistics) override {
    HostedCall call(*device_);
    device_->layer_norm_forward(epsilon, call.in(input), call.in(weight), call.in(bias),
                                call.out(output), call.out(statistics));
    call.finish();
  }
  void layer_norm_backward_input(const ConstTensorView& input, const ConstTensorView& statistics,
                                 const ConstTensorView& weight,
                                 const ConstTensorView& output_gradient,
                                 const TensorView& input_gradient) override {
    HostedCall call(*device_);
    device_->layer_norm_backward_input(call.in(input), call.in(statistics), call.in(weight),
                                       call.in(output_gradient), call.out(input_gradient));
    call.finish();
  }
  void layer_norm_backward_weights(const ConstTensorView& input, const ConstTensorView& statistics,
                                   const ConstTensorView& output_gradient,
                                   const TensorView& weight_gradient,
                                   const TensorView& bias_gradient) override {
    HostedCall call(*device_);
    device_->layer_norm_backward_weights(call.in(input), call.in(statistics),
                                         call.in(output_gradient), call.out(weight_gradient),
                                         call.out(bias_gradient));
    call.finish();
  }
  void embedding_forward(const ConstTensorView& indices, const ConstTensorView& table,
                         const TensorView& output) override {
    HostedCall call(*device_);
    device_->embedding_forward(call.in(indices), call.in(table), call.out(output));
    call.finish();
  }
  void embedding_backward(const ConstTensorView& indices, const ConstTensorView& output_gradient,
                          const TensorView& table_gradient) override {
    HostedCall call(*device_);
    device_->embedding_backward(call.in(indices), call.in(output_gradient),
                                call.out(table_gradient));
    call.finish();
  }
  void attention_forward(const AttentionOptions& options, const ConstTensorView& packed,
                         const TensorView& output, const TensorView& log_sums) override {
    HostedCall call(*device_);
    device_->attention_forward(options, call.in(packed), call.out(output), call.out(log_sums));
    call.finish();
  }
  void attention_backward(const AttentionOptions& options, const ConstTensorView& packed,
                          const ConstTensorView& output, const ConstTensorView& log_sums,
                          const ConstTensorView& output_gradient,
                          const TensorView& packed_gradient) override {
    HostedCall call(*device_);
    device_->attention_backward(options, call.in(packed), call.in(output), call.in(log_sums),
                                call.in(output_gradient), call.out(packed_gradient));
    call.finish();
  }
  void recurrent_forward(Recurrence recurrence, const ConstTensorView& gates,
                         const ConstTensorView& weight, const ConstTensorView& bias,
                         const TensorView& output, const TensorView& kept) override {
    HostedCall call(*device_);
    device_->recurrent_forward(recurrence, call.in(gates), call.in(weight), call.in(bias),
                               call.out(output), call.out(kept));
    call.finish();
  }
  void recurrent_backward(Recurrence recurrence, const ConstTensorView& weight,
                          const ConstTensorView& output, const ConstTensorView& kept,
                          const ConstTensorView& output_gradient, const TensorView& gates_gradient,
                          const TensorView& hidden_gradient) override {
    HostedCall call(*device_);
    device_->recurrent_backward(recurrence, call.in(weight), call.in(output), call.in(kept),
                                call.in(output_gradient), call.out(gates_gradient),
                                call.out(hidden_gradient));
    call.finish();
  }
  void row_products_forward(const ConstTensorView& a, const ConstTensorView& b,
                            const TensorView& output) override {
    HostedCall call(*device_);
    device_->row_products_forward(call.in(a), call.in(b), call.out(output));
    call.finish();
  }
  void row_products_backward(const ConstTensorView& b, const ConstTensorView& output_gradient,
                             const TensorView& a_gradient) override {
    HostedCall call(*device_);
    device_->row_products_backward(call.in(b), call.in(output_gradient), call.out(a_gradient));
    call.finish();
  }
  void dropout(const RandomKey& key, uint64_t first, double probability,
               const ConstTensorView& input, const TensorView& output) override {
    HostedCall call(*device_);
    device_->dropout(key, first, probability, call.in(input), call.out(output));
    call.finish();
  }
  void cast_to(const ConstTensorView& input, const TensorView& output) override {
    HostedCall call(*device_);
    device_->cast_to(call.in(input), call.out(output));
    call.finish();
  }
  void add(const ConstTensorView& source, const TensorView& target) override {
    HostedCall call(*device_);
    device_->add(call.in(source), call.out(target));
    call.finish();
  }

 private:
  const std::unique_ptr<LayerKernels> device_;
};

}  // namespace tutti::test
