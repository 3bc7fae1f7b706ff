#pragma once

// What one block does of the layers that no library of NVIDIA's does better, as functions of tile,
// thread and phase that compile for the host too. All arrays are dense, row-major and f32. Nothing
// is added up in an order that differs from run to run.

#include <cmath>
#include <limits>

#include "tutti/kernels/cuda/pack/pack_tile.h"

namespace tutti::cuda {

inline constexpr int64_t kLayerElements = 4 * kThreads;  // of one block, where each has its own

// --- softmax cross-entropy: a block has one row --------------------------------------------------

struct LossRows {
  int64_t classes;
  const int64_t* labels;     // [batch]
  const float* logits;       // [batch, classes]
  float* log_probabilities;  // likewise
  float* losses;             // [batch]
};

// The largest logit, then the sum of the exponentials, each by halves; then the results.
inline constexpr int kHalves = 8;
static_assert(kThreads == 1 << kHalves);
inline constexpr int kBiasPhases = 1 + kHalves + 1;
inline constexpr int kSoftmaxPhases = 2 * (1 + kHalves) + 1;

/// Log softmax of a row and its loss. `largest` and `sums` hold kThreads numbers of the block. A
/// label that is none of the classes makes the loss NaN, and no memory is read for it.
TUTTI_DEVICE void softmax_tile(const LossRows& rows, int64_t tile, int thread, int phase,
                               float* largest, double* sums) {
  const float* logits = rows.logits + tile * rows.classes;
  if (phase == 0) {
    float most = -std::numeric_limits<float>::infinity();
    for (int64_t i = thread; i < rows.classes; i += kThreads)
      if (logits[i] > most) most = logits[i];
    largest[thread] = most;
  } else if (phase <= kHalves) {
    const int half = kThreads >> phase;
    if (thread < half && largest[thread + half] > largest[thread])
      largest[thread] = largest[thread + half];
  } else if (phase == kHalves + 1) {
    double sum = 0;
    for (int64_t i = thread; i < rows.classes; i += kThreads)
      sum += static_cast<double>(std::exp(logits[i] - largest[0]));
    sums[thread] = sum;
  } else if (phase <= 2 * kHalves + 1) {
    const int half = kThreads >> (phase - kHalves - 1);
    if (thread < half) sums[thread] += sums[thread + half];
  } else {
    const auto log_sum = static_cast<float>(std::log(sums[0]));
    const int64_t label = rows.labels[tile];
    for (int64_t i = thread; i < rows.classes; i += kThreads) {
      const float result = logits[i] - largest[0] - log_sum;
      rows.log_probabilities[tile * rows.classes + i] = result;
      if (i == label) rows.losses[tile] = -result;
    }
    if (thread == 0 && (label < 0 || label >= rows.classes))
      rows.losses[tile] = std::numeric_limits<float>::quiet_NaN();
  }
}

/// logit_gradient = (softmax - one_hot(label)) * scale, of a row.
TUTTI_DEVICE void softmax_backward_tile(const LossRows& rows, float scale, float* logit_gradient,
                                        int64_t tile, int thread, int threads) {
  const int64_t begin = tile * rows.classes, label = rows.labels[tile];
  for (int64_t i = thread; i < rows.classes; i += threads)
    logit_gradient[begin + i] =
        (std::exp(rows.log_probabilities[begin + i]) - (i == label ? 1.0f : 0.0f)) * scale;
}

// --- bias and relu -------------------------------------------------------------------------------

/// output[.., channels, positions] = relu(input + bias[channel]); without a bias (null), or without
/// relu, that part is left out. Input and output may be one.
struct BiasRelu {
  int64_t count;
  int64_t channels;
  int64_t positions;  // what follows the channels; 1 for rows
  const float* bias;
  bool has_relu;
};

TUTTI_DEVICE void bias_relu_tile(const BiasRelu& layer, const float* input, float* output,
                                 int64_t tile, int thread, int threads) {
  const int64_t begin = tile * kLayerElements, left = layer.count - begin;
  for (int64_t k = thread; k < kLayerElements && k < left; k += threads) {
    const int64_t i = begin + k;
    float value = input[i];
    if (layer.bias != nullptr) value += layer.bias[i / layer.positions % layer.channels];
    // NaN stays NaN.
    output[i] = layer.has_relu && value <= 0 ? 0.0f : value;
  }
}

/// input_gradient = output_gradient where the output was above 0, else 0; in place too.
TUTTI_DEVICE void relu_backward_tile(int64_t count, const float* output,
                                     const float* output_gradient, float* input_gradient,
                                     int64_t tile, int thread, int threads) {
  const int64_t begin = tile * kLayerElements, left = count - begin;
  for (int64_t k = thread; k < kLayerElements && k < left; k += threads)
    input_gradient[begin + k] = output[begin + k] > 0 ? output_gradient[begin + k] : 0.0f;
}

/// bias_gradient[channel] += the sum of its output gradients; a block has one channel.
/// kBiasPhases phases; `sums` holds kThreads numbers of the block.
TUTTI_DEVICE void bias_gradient_tile(const BiasRelu& layer, const float* output_gradient,
                                     float* bias_gradient, int64_t tile, int thread, int phase,
                                     double* sums) {
  if (phase == 0) {
    const int64_t values = layer.count / layer.channels;
    double sum = 0;
    for (int64_t i = thread; i < values; i += kThreads)
      sum += static_cast<double>(
          output_gradient[(i / layer.positions * layer.channels + tile) * layer.positions +
                          i % layer.positions]);
    sums[thread] = sum;
  } else if (phase <= kHalves) {
    const int half = kThreads >> phase;
    if (thread < half) sums[thread] += sums[thread + half];
  } else if (thread == 0) {
    bias_gradient[tile] += static_cast<float>(sums[0]);
  }
}

// --- max pooling ---------------------------------------------------------------------------------

/// As PoolingShape; the padding belongs to no window.
struct MaxPooling {
  int64_t images;  // batch * channels
  int64_t height, width, output_height, output_width;
  int64_t kernel, stride, padding;  // kernel at most 15: a place in a window is a byte
};

TUTTI_DEVICE int64_t first_inside(int64_t begin) { return begin < 0 ? -begin : 0; }

/// Each window's largest element, and in `places` (one byte a window, for backward) which it was;
/// of equal ones the first in row order. NaN is larger than all.
TUTTI_DEVICE void max_pooling_tile(const MaxPooling& layer, const float* input, float* output,
                                   uint8_t* places, int64_t tile, int thread, int threads) {
  const int64_t windows = layer.output_height * layer.output_width;
  const int64_t begin = tile * kLayerElements, left = layer.images * windows - begin;
  for (int64_t k = thread; k < kLayerElements && k < left; k += threads) {
    const int64_t out = begin + k;
    const float* image = input + out / windows * layer.height * layer.width;
    const int64_t top = out % windows / layer.output_width * layer.stride - layer.padding;
    const int64_t at_left = out % layer.output_width * layer.stride - layer.padding;
    float most = -std::numeric_limits<float>::infinity();
    int64_t place = first_inside(top) * layer.kernel + first_inside(at_left);
    for (int64_t y = first_inside(top); y < layer.kernel && top + y < layer.height; ++y)
      for (int64_t x = first_inside(at_left); x < layer.kernel && at_left + x < layer.width; ++x) {
        const float value = image[(top + y) * layer.width + at_left + x];
        if (value > most || (value != value && most == most)) {
          most = value;
          place = y * layer.kernel + x;
        }
      }
    output[out] = most;
    places[out] = static_cast<uint8_t>(place);
  }
}

/// Each element gathers the gradients of the windows whose largest it was, in row order.
TUTTI_DEVICE void max_pooling_backward_tile(const MaxPooling& layer, const float* output_gradient,
                                            const uint8_t* places, float* input_gradient,
                                            int64_t tile, int thread, int threads) {
  const int64_t elements = layer.height * layer.width;
  const int64_t windows = layer.output_height * layer.output_width;
  const int64_t begin = tile * kLayerElements, left = layer.images * elements - begin;
  for (int64_t k = thread; k < kLayerElements && k < left; k += threads) {
    const int64_t in = begin + k, first = in / elements * windows;
    const int64_t y = in % elements / layer.width + layer.padding;
    const int64_t x = in % layer.width + layer.padding;
    // Windows from the first that ends behind the element.
    const int64_t row = y < layer.kernel ? 0 : (y - layer.kernel) / layer.stride + 1;
    const int64_t column = x < layer.kernel ? 0 : (x - layer.kernel) / layer.stride + 1;
    float sum = 0;
    for (int64_t r = row; r < layer.output_height && r * layer.stride <= y; ++r)
      for (int64_t c = column; c < layer.output_width && c * layer.stride <= x; ++c) {
        const int64_t window = first + r * layer.output_width + c;
        if (places[window] == (y - r * layer.stride) * layer.kernel + x - c * layer.stride)
          sum += output_gradient[window];
      }
    input_gradient[in] = sum;
  }
}

}  // namespace tutti::cuda
