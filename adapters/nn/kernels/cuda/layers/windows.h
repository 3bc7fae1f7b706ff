#pragma once

// Pooling of images [images, height, width], where an image is one channel of one batch element.

#include "tutti/adapters/nn/kernels/cuda/layers/elements.h"
#include "tutti/adapters/nn/kernels/cuda/layers/kernel.h"

namespace tutti::cuda {

/// A position in a window must fit into a byte.
inline constexpr int64_t kMostPoolingKernel = 15;

/// The fields are those of PoolingShape. Maxima and means ignore the padding.
struct PoolingWindows {
  int64_t height, width, output_height, output_width;
  int64_t kernel, stride, padding;
  TUTTI_DEVICE int64_t windows() const { return output_height * output_width; }
};

TUTTI_DEVICE int64_t first_inside(int64_t begin) { return begin < 0 ? -begin : 0; }

/// Returns how many of a window's positions along one side are inside the image.
TUTTI_DEVICE int64_t places_inside(int64_t begin, int64_t kernel, int64_t extent) {
  const int64_t end = begin + kernel < extent ? begin + kernel : extent;
  return end - (begin < 0 ? 0 : begin);
}

/// Computes each window's largest element and, in `places` (one byte per window, for backward), its
/// position in the window. Of equal elements the first in row order counts. NaN counts as the
/// largest. If `places` is null, computes the mean instead.
template <class T>
struct PoolingForward : ElementKernel {
  PoolingWindows layer;
  const T* input;
  T* output;
  uint8_t* places;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each(block, thread, [&](int64_t out) {
      const T* image = input + out / layer.windows() * layer.height * layer.width;
      const int64_t window = out % layer.windows();
      const int64_t top = window / layer.output_width * layer.stride - layer.padding;
      const int64_t left = window % layer.output_width * layer.stride - layer.padding;
      float most = -std::numeric_limits<float>::infinity(), sum = 0;
      int64_t place = first_inside(top) * layer.kernel + first_inside(left);
      for (int64_t y = first_inside(top); y < layer.kernel && top + y < layer.height; ++y)
        for (int64_t x = first_inside(left); x < layer.kernel && left + x < layer.width; ++x) {
          const float value = value_at(image, (top + y) * layer.width + left + x);
          sum += value;
          if (value > most || (value != value && most == most)) {
            most = value;
            place = y * layer.kernel + x;
          }
        }
      if (places != nullptr) {
        store_at(output, out, most);
        places[out] = static_cast<uint8_t>(place);
      } else {
        const int64_t inside = places_inside(top, layer.kernel, layer.height) *
                               places_inside(left, layer.kernel, layer.width);
        store_at(output, out, sum / static_cast<float>(inside));
      }
    });
  }
};

/// For each element, adds up the gradients of the windows in which it was the largest element, in
/// row order. If `places` is null, it sums the element's share of each window's gradient.
template <class T>
struct PoolingBackward : ElementKernel {
  PoolingWindows layer;
  const T* output_gradient;
  const uint8_t* places;
  T* input_gradient;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each(block, thread, [&](int64_t in) {
      const int64_t elements = layer.height * layer.width;
      const int64_t first = in / elements * layer.windows();
      const int64_t y = in % elements / layer.width + layer.padding;
      const int64_t x = in % layer.width + layer.padding;
      // The loops begin with the first window that ends after the element.
      const int64_t row = y < layer.kernel ? 0 : (y - layer.kernel) / layer.stride + 1;
      const int64_t column = x < layer.kernel ? 0 : (x - layer.kernel) / layer.stride + 1;
      float sum = 0;
      for (int64_t r = row; r < layer.output_height && r * layer.stride <= y; ++r)
        for (int64_t c = column; c < layer.output_width && c * layer.stride <= x; ++c)
          sum += share(first + r * layer.output_width + c, y - r * layer.stride,
                       x - c * layer.stride, r, c);
      store_at(input_gradient, in, sum);
    });
  }
  // Returns the part of a window's gradient that belongs to its element at (y, x).
  TUTTI_DEVICE float share(int64_t window, int64_t y, int64_t x, int64_t row,
                           int64_t column) const {
    if (places != nullptr)
      return places[window] == y * layer.kernel + x ? value_at(output_gradient, window) : 0.0f;
    const int64_t inside =
        places_inside(row * layer.stride - layer.padding, layer.kernel, layer.height) *
        places_inside(column * layer.stride - layer.padding, layer.kernel, layer.width);
    return value_at(output_gradient, window) / static_cast<float>(inside);
  }
};

}  // namespace tutti::cuda
