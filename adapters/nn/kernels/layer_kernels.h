#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tutti/adapters/nn/kernels/layer_shapes.h"
#include "tutti/kernels/counter_random.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// The arithmetic of layers on the tensors of one device, forward and backward. An object stores
/// nothing between calls. Backward gets the results of forward that it needs as arguments, so any
/// number of batches may be in flight. One thread at a time uses an object. Each model has its own,
/// so that ranks may be threads of one process. Equal shapes, numbers of threads and machines give
/// equal bits. On a device with streams, a call returns as soon as its work is queued on the stream
/// of its output.
///
/// All tensors are row-major, are on device(), and have dtype f32, bf16 or f16; 16-bit tensors are
/// computed in f32. Gradients of parameters and statistics are f32; exceptions are documented
/// below. A tensor without elements means that the layer has no bias. An empty batch does nothing.
///
/// Outputs and gradients of inputs are overwritten. Gradients of parameters are added to, so that
/// batches accumulate. Throws Error(invalid_argument) that names the layer, the given and the
/// expected value, and Error(internal) with the underlying library's text if that library fails.
class LayerKernels {
 public:
  LayerKernels() = default;
  virtual ~LayerKernels() = default;
  LayerKernels(const LayerKernels&) = delete;
  LayerKernels& operator=(const LayerKernels&) = delete;

  virtual Device device() const = 0;
  /// Returns the stream on which make_tensor() orders its tensors. Null on the CPU.
  virtual StreamRef stream() const { return {}; }

  /// Returns a tensor on device() for the output of a call, with arbitrary contents. Its memory may
  /// be that of an earlier tensor that was released. Use the tensor on one stream only. A device
  /// allocates and frees its memory in the order of that stream, so that no thread waits.
  Tensor make_tensor(const Shape& shape, DataType dtype) {
    return make_tensor(shape, dtype, stream());
  }
  virtual Tensor make_tensor(const Shape& shape, DataType dtype, StreamRef stream) = 0;
  /// Copies a host tensor to this device in the order of a stream. On the CPU it returns the tensor
  /// itself. on_host() is the reverse.
  Tensor upload(const Tensor& host) { return upload(host, stream()); }
  virtual Tensor upload(const Tensor& host, StreamRef) { return host; }
  /// Sets every element of an f32 tensor to zero.
  virtual void fill_zero(const TensorView& tensor) = 0;

  /// output[..., outputs] = input[..., inputs] * weight[outputs, inputs]^T + bias[outputs]
  virtual void linear_forward(const ConstTensorView& input, const ConstTensorView& weight,
                              const ConstTensorView& bias, const TensorView& output) = 0;
  /// input_gradient = output_gradient * weight
  virtual void linear_backward_input(const ConstTensorView& weight,
                                     const ConstTensorView& output_gradient,
                                     const TensorView& input_gradient) = 0;
  /// weight_gradient += output_gradient^T * input, and bias_gradient += the sum of output_gradient
  /// over the rows. Both gradients are f32.
  virtual void linear_backward_weights(const ConstTensorView& input,
                                       const ConstTensorView& output_gradient,
                                       const TensorView& weight_gradient,
                                       const TensorView& bias_gradient) = 0;

  /// Cross-correlation over two or three dimensions. input [batch, in, (depth,) height, width],
  /// weight [out, in, (kernel,) kernel, kernel], bias [out].
  virtual void convolution_forward(const ConvolutionOptions& options, const ConstTensorView& input,
                                   const ConstTensorView& weight, const ConstTensorView& bias,
                                   const TensorView& output) = 0;
  virtual void convolution_backward_input(const ConvolutionOptions& options,
                                          const ConstTensorView& weight,
                                          const ConstTensorView& output_gradient,
                                          const TensorView& input_gradient) = 0;
  /// Adds the gradients of weight and bias to f32 tensors.
  virtual void convolution_backward_weights(const ConvolutionOptions& options,
                                            const ConstTensorView& input,
                                            const ConstTensorView& output_gradient,
                                            const TensorView& weight_gradient,
                                            const TensorView& bias_gradient) = 0;

  /// Returns the bytes of the u8 workspace that pooling_forward() fills and pooling_backward()
  /// reads, in which max pooling records the position of each maximum. It is 0 if nothing is
  /// recorded.
  virtual int64_t pooling_workspace_bytes(const PoolingOptions& options, const Shape& input) = 0;
  virtual void pooling_forward(const PoolingOptions& options, const ConstTensorView& input,
                               const TensorView& output, const TensorView& workspace) = 0;
  virtual void pooling_backward(const PoolingOptions& options,
                                const ConstTensorView& output_gradient,
                                const ConstTensorView& workspace,
                                const TensorView& input_gradient) = 0;

  /// Computes each channel's mean: [batch, channels, ...] to [batch, channels].
  virtual void global_average_forward(const ConstTensorView& input, const TensorView& output) = 0;
  virtual void global_average_backward(const ConstTensorView& output_gradient,
                                       const TensorView& input_gradient) = 0;

  virtual void activation_forward(Activation activation, const ConstTensorView& input,
                                  const TensorView& output) = 0;
  /// `kept` is forward's output, or forward's input for activations for which keeps_input() is
  /// true. The derivative of relu is 1 where the output is above 0, that of tanh is 1 - y^2.
  virtual void activation_backward(Activation activation, const ConstTensorView& kept,
                                   const ConstTensorView& output_gradient,
                                   const TensorView& input_gradient) = 0;

  /// For logits [batch, classes] and labels i64[batch], computes each row's log softmax, f32, and
  /// each row's loss -log_probabilities[label], f32[batch].
  virtual void softmax_cross_entropy_forward(const ConstTensorView& logits,
                                             const ConstTensorView& labels,
                                             const TensorView& log_probabilities,
                                             const TensorView& losses) = 0;
  /// logit_gradient = (softmax - one_hot(label)) * scale
  virtual void softmax_cross_entropy_backward(const ConstTensorView& log_probabilities,
                                              const ConstTensorView& labels, float scale,
                                              const TensorView& logit_gradient) = 0;

  /// Computes each row's loss -input[label], f32[batch], for log probabilities [batch, classes] and
  /// labels i64[batch].
  virtual void negative_log_likelihood_forward(const ConstTensorView& input,
                                               const ConstTensorView& labels,
                                               const TensorView& losses) = 0;
  /// input_gradient = -scale at the label, and zero elsewhere.
  virtual void negative_log_likelihood_backward(const ConstTensorView& labels, float scale,
                                                const TensorView& input_gradient) = 0;
  /// Computes each row's mean of (input - target)^2, f32[batch], for input and target [batch, ...].
  virtual void squared_error_forward(const ConstTensorView& input, const ConstTensorView& target,
                                     const TensorView& losses) = 0;
  /// input_gradient = 2 * scale * (input - target) / elements of a row
  virtual void squared_error_backward(const ConstTensorView& input, const ConstTensorView& target,
                                      float scale, const TensorView& input_gradient) = 0;

  /// Computes the log softmax of each row of [..., classes].
  virtual void log_softmax_forward(const ConstTensorView& input, const TensorView& output) = 0;
  virtual void log_softmax_backward(const ConstTensorView& output,
                                    const ConstTensorView& output_gradient,
                                    const TensorView& input_gradient) = 0;

  /// Batch normalisation (Ioffe and Szegedy 2015) of [batch, channels, ...] has several steps, so
  /// that the moments of several ranks can be summed between them. Moments are f64[1 + 2 *
  /// channels]: the number of values per channel, then each channel's first sum, then each
  /// channel's second sum. They are overwritten. This first step of forward computes the sums of
  /// the values and of their squares.
  virtual void batch_norm_moments(const ConstTensorView& input, const TensorView& moments) = 0;
  /// Computes from the moments the mean and 1 / sqrt(variance + epsilon), f32[channels], and
  /// updates the running values: running = (1 - momentum) * running + momentum * (mean, or variance
  /// * n / (n - 1)). If there are no values, the running ones stay unchanged and the mean is 0.
  virtual void batch_norm_statistics(const ConstTensorView& moments, double epsilon,
                                     double momentum, const TensorView& mean,
                                     const TensorView& inverse_deviation,
                                     const TensorView& running_mean,
                                     const TensorView& running_variance) = 0;
  /// Computes mean and inverse_deviation from the running values, which stay unchanged.
  virtual void batch_norm_running_statistics(const ConstTensorView& running_mean,
                                             const ConstTensorView& running_variance,
                                             double epsilon, const TensorView& mean,
                                             const TensorView& inverse_deviation) = 0;
  /// output = (input - mean) * inverse_deviation * weight + bias
  virtual void batch_norm_forward(const ConstTensorView& input, const ConstTensorView& mean,
                                  const ConstTensorView& inverse_deviation,
                                  const ConstTensorView& weight, const ConstTensorView& bias,
                                  const TensorView& output) = 0;
  /// First step of backward: computes per channel the sum of the output gradient (the bias's
  /// gradient), and the sum of the output gradient times the normalised input (the weight's
  /// gradient).
  virtual void batch_norm_backward_moments(const ConstTensorView& input,
                                           const ConstTensorView& mean,
                                           const ConstTensorView& inverse_deviation,
                                           const ConstTensorView& output_gradient,
                                           const TensorView& moments) = 0;
  /// input_gradient = weight * inverse_deviation * (output_gradient - s / n - x * t / n), where x
  /// is the normalised input and n, s and t are the moments. A moments tensor without elements
  /// means evaluation: mean and deviation do not depend on the input then, and s and t are zero.
  virtual void batch_norm_backward_input(const ConstTensorView& input, const ConstTensorView& mean,
                                         const ConstTensorView& inverse_deviation,
                                         const ConstTensorView& weight,
                                         const ConstTensorView& output_gradient,
                                         const ConstTensorView& moments,
                                         const TensorView& input_gradient) = 0;

  /// bias_gradient += s, weight_gradient += t, where s and t are the first and second sums of the
  /// moments. Both gradients are f32.
  virtual void batch_norm_backward_weights(const ConstTensorView& moments,
                                           const TensorView& weight_gradient,
                                           const TensorView& bias_gradient) = 0;

  /// Layer normalisation (Ba et al. 2016) of rows [..., features]. The statistics f32[rows, 2] are
  /// each row's mean and 1 / sqrt(variance + epsilon).
  virtual void layer_norm_forward(double epsilon, const ConstTensorView& input,
                                  const ConstTensorView& weight, const ConstTensorView& bias,
                                  const TensorView& output, const TensorView& statistics) = 0;
  virtual void layer_norm_backward_input(const ConstTensorView& input,
                                         const ConstTensorView& statistics,
                                         const ConstTensorView& weight,
                                         const ConstTensorView& output_gradient,
                                         const TensorView& input_gradient) = 0;
  /// Adds the gradients of weight and bias to f32 tensors.
  virtual void layer_norm_backward_weights(const ConstTensorView& input,
                                           const ConstTensorView& statistics,
                                           const ConstTensorView& output_gradient,
                                           const TensorView& weight_gradient,
                                           const TensorView& bias_gradient) = 0;

  /// output[..., features] = table[index], for indices i64[...]. Throws Error(invalid_argument) for
  /// an index outside of the table. A GPU cannot throw: there such an index gives a row of NaN, and
  /// a loss whose label is not a class is NaN.
  virtual void embedding_forward(const ConstTensorView& indices, const ConstTensorView& table,
                                 const TensorView& output) = 0;
  /// table_gradient[index] += output_gradient, in the order of the indices; f32.
  virtual void embedding_backward(const ConstTensorView& indices,
                                  const ConstTensorView& output_gradient,
                                  const TensorView& table_gradient) = 0;

  /// softmax(Q K^T / sqrt(width)) V for each head (Vaswani et al. 2017). `packed` holds queries,
  /// keys and values side by side: [batch, length, 3 * heads * width]. `log_sums` receives the
  /// logarithm of each row's sum of exponentials, f32[batch, heads, length].
  virtual void attention_forward(const AttentionOptions& options, const ConstTensorView& packed,
                                 const TensorView& output, const TensorView& log_sums) = 0;
  virtual void attention_backward(const AttentionOptions& options, const ConstTensorView& packed,
                                  const ConstTensorView& output, const ConstTensorView& log_sums,
                                  const ConstTensorView& output_gradient,
                                  const TensorView& packed_gradient) = 0;

  /// Runs a recurrent layer over the `length` steps. `gates` [batch, length, gates * width] holds
  /// the contribution of the inputs to each gate. h denotes the hidden values before a step, which
  /// are zero at first, and r = weight [gates * width, width] * h + bias is the contribution of h.
  /// lstm: cell = sigmoid(forget) * cell + sigmoid(input) * tanh(candidate) and h = sigmoid(output)
  /// * tanh(cell), where each gate is the sum of both contributions.
  /// gru: h = (1 - u) * tanh(candidate + sigmoid(reset) * (r of the candidate)) + u * h, where u =
  /// sigmoid(update).
  /// `output` [batch, length, width] receives all h. `kept` f32[batch, length, kept * width] is
  /// passed to backward.
  virtual void recurrent_forward(Recurrence recurrence, const ConstTensorView& gates,
                                 const ConstTensorView& weight, const ConstTensorView& bias,
                                 const TensorView& output, const TensorView& kept) = 0;
  /// Computes the gradients of the gates and of r. The gradients of the weight and the bias follow
  /// from that of r, like those of a linear layer whose input is the h before each step.
  virtual void recurrent_backward(Recurrence recurrence, const ConstTensorView& weight,
                                  const ConstTensorView& output, const ConstTensorView& kept,
                                  const ConstTensorView& output_gradient,
                                  const TensorView& gates_gradient,
                                  const TensorView& hidden_gradient) = 0;

  /// output[batch, 1] = the sum over each row of a * b, for a and b [batch, ...].
  virtual void row_products_forward(const ConstTensorView& a, const ConstTensorView& b,
                                    const TensorView& output) = 0;
  /// Computes the gradient of one factor from the other: a_gradient = output_gradient * b.
  virtual void row_products_backward(const ConstTensorView& b,
                                     const ConstTensorView& output_gradient,
                                     const TensorView& a_gradient) = 0;

  /// Sets each element to zero with `probability`, and divides the others by 1 - probability.
  /// Element i of the input uses random number first + i of the key, so that a part of a batch gets
  /// its part of the whole batch's mask. Backward is the same call on the gradients.
  virtual void dropout(const RandomKey& key, uint64_t first, double probability,
                       const ConstTensorView& input, const TensorView& output) = 0;

  /// Converts to another dtype of the same shape, rounding to nearest.
  virtual void cast_to(const ConstTensorView& input, const TensorView& output) = 0;
  /// target += source. Both have one shape; each is f32, bf16 or f16.
  virtual void add(const ConstTensorView& source, const TensorView& target) = 0;
};

/// Returns the kernels for a device. On the CPU they are oneDNN and our own loops, with `threads`
/// threads per call. On a GPU they are cuBLASLt, cuDNN and our own kernels, from a plugin
/// (layer_plugin.h). Throws Error(unavailable) for a device without layer kernels, and
/// Error(invalid_argument) for fewer than one thread.
std::unique_ptr<LayerKernels> make_layer_kernels(Device device = {}, int threads = 1);

}  // namespace tutti
