#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Returns how many windows of `kernel` elements, `stride` apart, fit into `extent` elements.
constexpr int64_t window_count(int64_t extent, int64_t kernel, int64_t stride) {
  return stride < 1 ? 0 : std::max<int64_t>(0, extent - kernel + stride) / stride;
}

/// Options of a convolution over two or three dimensions. They apply to each dimension; the padding
/// is zeros on all sides.
struct ConvolutionOptions {
  int64_t stride = 1;
  int64_t padding = 0;
};

enum class Pooling : uint8_t { max, average };

/// Square windows over the two dimensions of images. Maxima and averages ignore the padding.
/// Elements at the right and lower edge that do not fill a window are ignored.
struct PoolingOptions {
  Pooling pooling = Pooling::max;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
};

/// gelu is the form with tanh (Hendrycks and Gimpel 2016): x / 2 * (1 + tanh(sqrt(2 / pi) * (x +
/// 0.044715 x^3))).
enum class Activation : uint8_t { relu, tanh, gelu };
/// Returns whether backward needs forward's input instead of its output.
constexpr bool keeps_input(Activation activation) { return activation == Activation::gelu; }

/// Options of attention. The features are split among `heads`. In causal attention a row does not
/// see later rows.
struct AttentionOptions {
  int64_t heads = 1;
  bool causal = true;
};

/// Recurrent layers, with their gates in this order. lstm (Hochreiter and Schmidhuber 1997, with a
/// forget gate): input, forget, candidate, output. gru (Cho et al. 2014, with the reset after the
/// product): reset, update, candidate.
enum class Recurrence : uint8_t { lstm, gru };
constexpr int64_t gate_count(Recurrence recurrence) {
  return recurrence == Recurrence::lstm ? 4 : 3;
}

/// The structs below describe the shapes of the layers' kernels as numbers. All arrays are dense
/// and row-major: images are [batch, channels, (depth,) height, width], rows are [..., features].

/// output[rows, outputs] = input[rows, inputs] * weight[outputs, inputs]^T + bias[outputs]
struct LinearShape {
  int64_t rows = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;
};

/// Cross-correlation with weight [output_channels, input_channels, (kernel,) kernel, kernel] and
/// bias [output_channels]. Two-dimensional images have depth 1.
struct ConvolutionShape {
  using Extents = std::array<int64_t, 3>;  // depth, height, width
  int64_t batch = 0;
  int64_t input_channels = 0;
  int64_t output_channels = 0;
  int dimensions = 2;
  Extents image{};
  Extents kernel{};
  Extents stride{};
  Extents padding{};

  Extents output() const {
    Extents windows;
    for (size_t i = 0; i < 3; ++i)
      windows[i] = window_count(image[i] + 2 * padding[i], kernel[i], stride[i]);
    return windows;
  }
};

/// Queries, keys and values are side by side: [batch, length, 3 * heads * width].
struct AttentionShape {
  AttentionOptions options;
  int64_t batch = 0;
  int64_t length = 0;
  int64_t width = 0;  // width of one head
};

/// Gates are side by side: [batch, length, gates * width].
struct RecurrentShape {
  int64_t batch = 0;
  int64_t length = 0;
  int64_t width = 0;  // number of hidden values
  int64_t gates = 0;
  int64_t kept = 0;  // values per hidden value that backward needs
};

/// Images or rows [batch, channels, ...]; the positions are the extents after the channels.
struct ChannelsShape {
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t positions = 0;
};

struct PoolingShape {
  PoolingOptions options;
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;

  int64_t output_height() const {
    return window_count(height + 2 * options.padding, options.kernel, options.stride);
  }
  int64_t output_width() const {
    return window_count(width + 2 * options.padding, options.kernel, options.stride);
  }
};

/// The following functions return the shape of a call. Each throws Error(invalid_argument) that
/// names the layer, the given and the accepted value. A batch may be empty; all other extents are
/// at least 1.
LinearShape linear_shape(const Shape& input, const Shape& weight);
ConvolutionShape convolution_shape(const ConvolutionOptions& options, const Shape& input,
                                   const Shape& weight);
PoolingShape pooling_shape(const PoolingOptions& options, const Shape& input);
AttentionShape attention_shape(const AttentionOptions& options, const Shape& packed);
RecurrentShape recurrent_shape(Recurrence recurrence, const Shape& gates);
/// `layer` is its name in errors.
ChannelsShape channels_shape(const char* layer, const Shape& input);
/// The following functions return the shape of the layer's output.
Shape attention_output(const AttentionShape& shape);
Shape linear_output(const Shape& input, const Shape& weight);
Shape convolution_output(const ConvolutionShape& shape);
Shape pooling_output(const PoolingShape& shape);

/// Throws Error(invalid_argument) unless `view`, an argument of `layer` called `name`, has that
/// shape.
void require_shape(const char* layer, const char* name, const TensorView& view,
                   const Shape& expected);

}  // namespace tutti
