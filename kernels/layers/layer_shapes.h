#pragma once

#include <cstdint>

namespace tutti {

/// Shapes of the layers' kernels. All arrays are dense and row-major, f32: images
/// [batch, channels, height, width], rows [batch, features], weights as each shape says.

/// output[batch, outputs] = input[batch, inputs] * weight[outputs, inputs]^T + bias[outputs]
struct LinearShape {
  int64_t batch = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;
};

/// Cross-correlation with zero padding on all four sides: weight [output_channels, input_channels,
/// kernel, kernel], bias [output_channels].
struct Conv2dShape {
  int64_t batch = 0;
  int64_t input_channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t output_channels = 0;
  int64_t kernel = 0;
  int64_t stride = 1;
  int64_t padding = 0;

  int64_t output_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  int64_t output_width() const { return (width + 2 * padding - kernel) / stride + 1; }
};

enum class Pooling : uint8_t { max, average };

/// Square windows without padding; what does not fill a window at the right and lower edge is left
/// out.
struct Pool2dShape {
  Pooling pooling = Pooling::max;
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t kernel = 0;
  int64_t stride = 0;

  int64_t output_height() const { return (height - kernel) / stride + 1; }
  int64_t output_width() const { return (width - kernel) / stride + 1; }
};

enum class Activation : uint8_t { relu, tanh };

}  // namespace tutti
