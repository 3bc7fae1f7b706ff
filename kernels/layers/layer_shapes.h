#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// How many windows of `kernel` elements, `stride` apart, fit into `extent` elements; 0 if none
/// does.
constexpr int64_t window_count(int64_t extent, int64_t kernel, int64_t stride) {
  return stride < 1 ? 0 : std::max<int64_t>(0, extent - kernel + stride) / stride;
}

/// Of a convolution over two or three dimensions: the same in each, with zeros as padding on all
/// sides.
struct ConvolutionOptions {
  int64_t stride = 1;
  int64_t padding = 0;
};

enum class Pooling : uint8_t { max, average };

/// Square windows over the two dimensions of images. The padding belongs to no maximum and to no
/// average; what does not fill a window at the right and lower edge is left out.
struct PoolingOptions {
  Pooling pooling = Pooling::max;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
};

/// gelu in its form with tanh (Hendrycks and Gimpel 2016):
/// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))).
enum class Activation : uint8_t { relu, tanh, gelu };
/// Whether backward wants what forward was given, instead of what it put out.
constexpr bool keeps_input(Activation activation) { return activation == Activation::gelu; }

/// Of attention: the features are dealt to `heads`; causal rows see no later ones.
struct AttentionOptions {
  int64_t heads = 1;
  bool causal = true;
};

/// Gates of a recurrent layer, in this order. lstm (Hochreiter and Schmidhuber 1997, with a forget
/// gate): input, forget, candidate, output. gru (Cho et al. 2014, the reset after the product):
/// reset, update, candidate.
enum class Recurrence : uint8_t { lstm, gru };
constexpr int64_t gate_count(Recurrence recurrence) {
  return recurrence == Recurrence::lstm ? 4 : 3;
}

/// Shapes of the layers' kernels, as numbers. All arrays are dense and row-major: images
/// [batch, channels, (depth,) height, width], rows [..., features].

/// output[rows, outputs] = input[rows, inputs] * weight[outputs, inputs]^T + bias[outputs]
struct LinearShape {
  int64_t rows = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;
};

/// Cross-correlation: weight [output_channels, input_channels, (kernel,) kernel, kernel], bias
/// [output_channels]. Images of two dimensions are one plane deep.
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

/// Queries, keys and values beside each other: [batch, length, 3 * heads * width].
struct AttentionShape {
  AttentionOptions options;
  int64_t batch = 0;
  int64_t length = 0;
  int64_t width = 0;  // of a head
};

/// Gates beside each other: [batch, length, gates * width].
struct RecurrentShape {
  int64_t batch = 0;
  int64_t length = 0;
  int64_t width = 0;  // of the hidden values
  int64_t gates = 0;
  int64_t kept = 0;  // values of each hidden one that backward needs
};

/// Images or rows [batch, channels, ...]: positions are what follows the channels.
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

/// The shapes of a call. Each throws Error(invalid_argument) that names the layer, what came and
/// what would fit. A batch may be empty, all other extents are at least 1.
LinearShape linear_shape(const Shape& input, const Shape& weight);
ConvolutionShape convolution_shape(const ConvolutionOptions& options, const Shape& input,
                                   const Shape& weight);
PoolingShape pooling_shape(const PoolingOptions& options, const Shape& input);
AttentionShape attention_shape(const AttentionOptions& options, const Shape& packed);
RecurrentShape recurrent_shape(Recurrence recurrence, const Shape& gates);
/// `layer` stands in errors.
ChannelsShape channels_shape(const char* layer, const Shape& input);
/// What the layer puts out.
Shape attention_output(const AttentionShape& shape);
Shape linear_output(const Shape& input, const Shape& weight);
Shape convolution_output(const ConvolutionShape& shape);
Shape pooling_output(const PoolingShape& shape);

/// Throws Error(invalid_argument) unless `view`, the `name` of the layer, has that shape.
void require_shape(const char* layer, const char* name, const TensorView& view,
                   const Shape& expected);

}  // namespace tutti
