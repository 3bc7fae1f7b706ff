#pragma once

#include <algorithm>
#include <cstdint>

namespace tutti {

/// How many windows of `kernel` elements, `stride` apart, fit into `extent` elements; 0 if none
/// does.
constexpr int64_t window_count(int64_t extent, int64_t kernel, int64_t stride) {
  return stride < 1 ? 0 : std::max<int64_t>(0, extent - kernel + stride) / stride;
}

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

  int64_t output_height() const { return window_count(height + 2 * padding, kernel, stride); }
  int64_t output_width() const { return window_count(width + 2 * padding, kernel, stride); }
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

  int64_t output_height() const { return window_count(height, kernel, stride); }
  int64_t output_width() const { return window_count(width, kernel, stride); }
};

enum class Activation : uint8_t { relu, tanh };

}  // namespace tutti
