#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tutti/kernels/counter_random.h"
#include "tutti/kernels/layers/layer_shapes.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// The arithmetic of layers on the tensors of one device, forward and backward. It keeps nothing of
/// a call: what backward needs of forward is handed in, so any number of batches may be on their
/// way. One thread at a time uses an object; each model has its own, so that ranks may be threads
/// of one process. The same shapes, number of threads and machine give the same bits. On a device
/// with streams a call returns once it is in order on the stream of its output.
///
/// All tensors are row-major, on device(), and f32, bf16 or f16; 16-bit ones are storage around
/// arithmetic in f32. Parameters' gradients and statistics are f32 and are told below. A tensor of
/// no elements stands for a bias that the layer does not have; an empty batch is nothing to do.
///
/// Outputs and gradients of inputs are overwritten; gradients of parameters are added to, so that
/// batches add up. Throws Error(invalid_argument) that names the layer, what came and what was
/// expected, and Error(internal) with the words of the library below if that refuses.
class LayerKernels {
 public:
  LayerKernels() = default;
  virtual ~LayerKernels() = default;
  LayerKernels(const LayerKernels&) = delete;
  LayerKernels& operator=(const LayerKernels&) = delete;

  virtual Device device() const = 0;
  /// What make_tensor() makes is ready there. Null on the CPU.
  virtual StreamRef stream() const { return {}; }

  /// A tensor on device() for what a call puts out, with any contents: its memory may be that of an
  /// earlier one that was let go of. It is used on one stream alone; a device gives and takes its
  /// memory in the order of that stream, so that nobody waits.
  Tensor make_tensor(const Shape& shape, DataType dtype) {
    return make_tensor(shape, dtype, stream());
  }
  virtual Tensor make_tensor(const Shape& shape, DataType dtype, StreamRef stream) = 0;
  /// What is in the host's memory, on this device in the order of a stream. On the CPU the tensor
  /// itself. The way back is on_host().
  Tensor upload(const Tensor& host) { return upload(host, stream()); }
  virtual Tensor upload(const Tensor& host, StreamRef) { return host; }
  /// f32; every element becomes zero.
  virtual void fill_zero(const TensorView& tensor) = 0;

  /// output[..., outputs] = input[..., inputs] * weight[outputs, inputs]^T + bias[outputs]
  virtual void linear_forward(const ConstTensorView& input, const ConstTensorView& weight,
                              const ConstTensorView& bias, const TensorView& output) = 0;
  /// input_gradient = output_gradient * weight
  virtual void linear_backward_input(const ConstTensorView& weight,
                                     const ConstTensorView& output_gradient,
                                     const TensorView& input_gradient) = 0;
  /// weight_gradient += output_gradient^T * input, bias_gradient += its sum over the rows; f32.
  virtual void linear_backward_weights(const ConstTensorView& input,
                                       const ConstTensorView& output_gradient,
                                       const TensorView& weight_gradient,
                                       const TensorView& bias_gradient) = 0;

  /// input [batch, in, (depth,) height, width], weight [out, in, (kernel,) kernel, kernel],
  /// bias [out]: cross-correlation over two or three dimensions.
  virtual void convolution_forward(const ConvolutionOptions& options, const ConstTensorView& input,
                                   const ConstTensorView& weight, const ConstTensorView& bias,
                                   const TensorView& output) = 0;
  virtual void convolution_backward_input(const ConvolutionOptions& options,
                                          const ConstTensorView& weight,
                                          const ConstTensorView& output_gradient,
                                          const TensorView& input_gradient) = 0;
  /// Adds to f32 gradients.
  virtual void convolution_backward_weights(const ConvolutionOptions& options,
                                            const ConstTensorView& input,
                                            const ConstTensorView& output_gradient,
                                            const TensorView& weight_gradient,
                                            const TensorView& bias_gradient) = 0;

  /// Max pooling remembers where each maximum stood: a u8 tensor of this many bytes goes from
  /// forward to backward. 0 where nothing is remembered.
  virtual int64_t pooling_workspace_bytes(const PoolingOptions& options, const Shape& input) = 0;
  virtual void pooling_forward(const PoolingOptions& options, const ConstTensorView& input,
                               const TensorView& output, const TensorView& workspace) = 0;
  virtual void pooling_backward(const PoolingOptions& options,
                                const ConstTensorView& output_gradient,
                                const ConstTensorView& workspace,
                                const TensorView& input_gradient) = 0;

  /// [batch, channels, ...] to each channel's mean, [batch, channels].
  virtual void global_average_forward(const ConstTensorView& input, const TensorView& output) = 0;
  virtual void global_average_backward(const ConstTensorView& output_gradient,
                                       const TensorView& input_gradient) = 0;

  virtual void activation_forward(Activation activation, const ConstTensorView& input,
                                  const TensorView& output) = 0;
  /// `kept` is what forward put out, or for activations that keeps_input() names what it was given:
  /// relu's derivative is 1 where the output is above 0, tanh's 1 - y^2.
  virtual void activation_backward(Activation activation, const ConstTensorView& kept,
                                   const ConstTensorView& output_gradient,
                                   const TensorView& input_gradient) = 0;

  /// Of logits [batch, classes] and labels i64[batch]: log softmax of each row, f32, and each row's
  /// loss -log_probabilities[label], f32[batch].
  virtual void softmax_cross_entropy_forward(const ConstTensorView& logits,
                                             const ConstTensorView& labels,
                                             const TensorView& log_probabilities,
                                             const TensorView& losses) = 0;
  /// logit_gradient = (softmax - one_hot(label)) * scale
  virtual void softmax_cross_entropy_backward(const ConstTensorView& log_probabilities,
                                              const ConstTensorView& labels, float scale,
                                              const TensorView& logit_gradient) = 0;

  /// Each row's -input[label], f32[batch], of log probabilities [batch, classes] and i64[batch].
  virtual void negative_log_likelihood_forward(const ConstTensorView& input,
                                               const ConstTensorView& labels,
                                               const TensorView& losses) = 0;
  /// input_gradient = -scale at the label, else zero.
  virtual void negative_log_likelihood_backward(const ConstTensorView& labels, float scale,
                                                const TensorView& input_gradient) = 0;
  /// Each row's mean of (input - target)^2, f32[batch], of [batch, ...].
  virtual void squared_error_forward(const ConstTensorView& input, const ConstTensorView& target,
                                     const TensorView& losses) = 0;
  /// input_gradient = 2 * scale * (input - target) / elements of a row
  virtual void squared_error_backward(const ConstTensorView& input, const ConstTensorView& target,
                                      float scale, const TensorView& input_gradient) = 0;

  /// Log softmax of each row of [..., classes].
  virtual void log_softmax_forward(const ConstTensorView& input, const TensorView& output) = 0;
  virtual void log_softmax_backward(const ConstTensorView& output,
                                    const ConstTensorView& output_gradient,
                                    const TensorView& input_gradient) = 0;

  /// Batch normalisation (Ioffe and Szegedy 2015) of [batch, channels, ...], in steps, so that the
  /// moments of several ranks can be added up between them. Moments are f64[1 + 2 * channels]: how
  /// many values a channel has, then a sum and another sum for each channel. They are overwritten.
  /// Forward: the sums of the values and of their squares.
  virtual void batch_norm_moments(const ConstTensorView& input, const TensorView& moments) = 0;
  /// From the moments the mean and 1 / sqrt(variance + epsilon), f32[channels], and running values:
  /// running = (1 - momentum) * running + momentum * (mean, or variance * n / (n - 1)). Without any
  /// values the running ones stay and the mean is 0.
  virtual void batch_norm_statistics(const ConstTensorView& moments, double epsilon,
                                     double momentum, const TensorView& mean,
                                     const TensorView& inverse_deviation,
                                     const TensorView& running_mean,
                                     const TensorView& running_variance) = 0;
  /// The same of running values, which stay as they are.
  virtual void batch_norm_running_statistics(const ConstTensorView& running_mean,
                                             const ConstTensorView& running_variance,
                                             double epsilon, const TensorView& mean,
                                             const TensorView& inverse_deviation) = 0;
  /// output = (input - mean) * inverse_deviation * weight + bias
  virtual void batch_norm_forward(const ConstTensorView& input, const ConstTensorView& mean,
                                  const ConstTensorView& inverse_deviation,
                                  const ConstTensorView& weight, const ConstTensorView& bias,
                                  const TensorView& output) = 0;
  /// Backward: the sums of the output gradient (the bias' gradient), and of it times the normalised
  /// input (the weight's).
  virtual void batch_norm_backward_moments(const ConstTensorView& input,
                                           const ConstTensorView& mean,
                                           const ConstTensorView& inverse_deviation,
                                           const ConstTensorView& output_gradient,
                                           const TensorView& moments) = 0;
  /// With x the normalised input, n, s and t the moments: input_gradient = weight *
  /// inverse_deviation * (output_gradient - s / n - x * t / n). Moments of no elements stand for
  /// evaluation, where mean and deviation do not depend on the input: s and t are zero.
  virtual void batch_norm_backward_input(const ConstTensorView& input, const ConstTensorView& mean,
                                         const ConstTensorView& inverse_deviation,
                                         const ConstTensorView& weight,
                                         const ConstTensorView& output_gradient,
                                         const ConstTensorView& moments,
                                         const TensorView& input_gradient) = 0;

  /// bias_gradient += s, weight_gradient += t; f32.
  virtual void batch_norm_backward_weights(const ConstTensorView& moments,
                                           const TensorView& weight_gradient,
                                           const TensorView& bias_gradient) = 0;

  /// Layer normalisation (Ba et al. 2016) of rows [..., features]: statistics f32[rows, 2] are each
  /// row's mean and 1 / sqrt(variance + epsilon).
  virtual void layer_norm_forward(double epsilon, const ConstTensorView& input,
                                  const ConstTensorView& weight, const ConstTensorView& bias,
                                  const TensorView& output, const TensorView& statistics) = 0;
  virtual void layer_norm_backward_input(const ConstTensorView& input,
                                         const ConstTensorView& statistics,
                                         const ConstTensorView& weight,
                                         const ConstTensorView& output_gradient,
                                         const TensorView& input_gradient) = 0;
  /// Adds to f32 gradients.
  virtual void layer_norm_backward_weights(const ConstTensorView& input,
                                           const ConstTensorView& statistics,
                                           const ConstTensorView& output_gradient,
                                           const TensorView& weight_gradient,
                                           const TensorView& bias_gradient) = 0;

  /// output[..., features] = table[index], of indices i64[...]. Throws Error(invalid_argument) for
  /// an index outside of the table; a device, which tells nobody, makes it a row of NaN, and a loss
  /// with a label that is no class NaN.
  virtual void embedding_forward(const ConstTensorView& indices, const ConstTensorView& table,
                                 const TensorView& output) = 0;
  /// table_gradient[index] += output_gradient, in the order of the indices; f32.
  virtual void embedding_backward(const ConstTensorView& indices,
                                  const ConstTensorView& output_gradient,
                                  const TensorView& table_gradient) = 0;

  /// softmax(Q K^T / sqrt(width)) V for each head (Vaswani et al. 2017). `packed` holds queries,
  /// keys and values beside each other: [batch, length, 3 * heads * width]; `log_sums` are the
  /// logarithms of each row's sum of exponentials, f32[batch, heads, length].
  virtual void attention_forward(const AttentionOptions& options, const ConstTensorView& packed,
                                 const TensorView& output, const TensorView& log_sums) = 0;
  virtual void attention_backward(const AttentionOptions& options, const ConstTensorView& packed,
                                  const ConstTensorView& output, const ConstTensorView& log_sums,
                                  const ConstTensorView& output_gradient,
                                  const TensorView& packed_gradient) = 0;

  /// A recurrent layer over the steps of [batch, length, gates * width], what the inputs give each
  /// gate. With h the hidden values before a step (zero at first) and the gates' products
  /// r = weight [gates * width, width] * h + bias: lstm: cell = sigmoid(forget) * cell +
  /// sigmoid(input) * tanh(candidate), h = sigmoid(output) * tanh(cell), each gate the sum of both
  /// sides. gru: h = (1 - u) * tanh(candidate + sigmoid(reset) * r of the candidate) + u * h with
  /// u = sigmoid(update). `output` [batch, length, width] are all h; `kept` f32[batch, length,
  /// kept * width] goes to backward.
  virtual void recurrent_forward(Recurrence recurrence, const ConstTensorView& gates,
                                 const ConstTensorView& weight, const ConstTensorView& bias,
                                 const TensorView& output, const TensorView& kept) = 0;
  /// The gradients of the gates and of r. Those of the weight and the bias are products of the
  /// latter, as of a linear layer whose input is each step's h before it.
  virtual void recurrent_backward(Recurrence recurrence, const ConstTensorView& weight,
                                  const ConstTensorView& output, const ConstTensorView& kept,
                                  const ConstTensorView& output_gradient,
                                  const TensorView& gates_gradient,
                                  const TensorView& hidden_gradient) = 0;

  /// output[batch, 1] = the sum over a row of a * b, of [batch, ...].
  virtual void row_products_forward(const ConstTensorView& a, const ConstTensorView& b,
                                    const TensorView& output) = 0;
  /// The gradient of one factor, by the other: a_gradient = output_gradient * b.
  virtual void row_products_backward(const ConstTensorView& b,
                                     const ConstTensorView& output_gradient,
                                     const TensorView& a_gradient) = 0;

  /// Each element with `probability` becomes zero, the others are divided by 1 - probability.
  /// Element i of the input is element first + i of the key, so that a part of a batch gets its
  /// part of the whole batch's mask. Backward is the same of the gradients.
  virtual void dropout(const RandomKey& key, uint64_t first, double probability,
                       const ConstTensorView& input, const TensorView& output) = 0;

  /// Into another type of the same shape, rounded to nearest.
  virtual void cast_to(const ConstTensorView& input, const TensorView& output) = 0;
  /// target += source; of one shape, of any types above.
  virtual void add(const ConstTensorView& source, const TensorView& target) = 0;
};

/// What computes layers there: on the CPU oneDNN and own loops, on `threads` threads each call; on
/// a GPU cuBLASLt, cuDNN and own kernels, by a plugin (layer_plugin.h). Throws Error(unavailable)
/// for a device whose layers nobody computes here, Error(invalid_argument) below one thread.
std::unique_ptr<LayerKernels> make_layer_kernels(Device device = {}, int threads = 1);

}  // namespace tutti
