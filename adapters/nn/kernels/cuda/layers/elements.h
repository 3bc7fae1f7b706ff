#pragma once

// Kernels that treat all elements the same.

#include "tutti/adapters/nn/kernels/cuda/layers/kernel.h"
#include "tutti/adapters/nn/kernels/layer_shapes.h"

namespace tutti::cuda {

/// Base of elementwise kernels: calls `body(i)` for each element of a block, four per thread.
struct ElementKernel {
  using Shared = NothingShared;
  static constexpr int kPhases = 1;
  int64_t count;
  int64_t blocks() const { return blocks_for(count, kLayerElements); }
  template <class Body>
  TUTTI_DEVICE void each(int64_t block, int thread, Body body) const {
    const int64_t begin = block * kLayerElements;
    const int64_t left = count - begin < kLayerElements ? count - begin : kLayerElements;
    for (int64_t k = thread; k < left; k += kThreads) body(begin + k);
  }
};

/// Base of kernels whose result at an index depends only on the inputs at that index. A thread
/// handles kWide consecutive elements.
struct WideKernel {
  using Shared = NothingShared;
  static constexpr int kPhases = 1;
  int64_t count;
  int64_t blocks() const { return blocks_for(count, kWide * kThreads); }
  /// to[i] = body(from[i]...)
  template <class To, class Body, class... From>
  TUTTI_DEVICE void map(int64_t block, int thread, To* to, Body body, const From*... from) const {
    const int64_t begin = (block * kThreads + thread) * kWide;
    if (begin + kWide > count) {
      for (int64_t i = begin; i < count; ++i) store_at(to, i, body(value_at(from, i)...));
      return;
    }
    map_wide(to + begin, body, Loaded<From>(from + begin)...);
  }

 private:
  template <class From>
  struct Loaded {
    float values[kWide];
    TUTTI_DEVICE explicit Loaded(const From* from) { load_wide(from, values); }
  };
  template <class To, class Body, class... From>
  TUTTI_DEVICE static void map_wide(To* to, Body body, const Loaded<From>&... from) {
    float results[kWide];
    for (int k = 0; k < kWide; ++k) results[k] = body(from.values[k]...);
    store_wide(to, results);
  }
};

template <class From, class To>
struct CastElements : WideKernel {
  const From* from;
  To* to;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    map(
        block, thread, to, [](float value) { return value; }, from);
  }
};

struct ZeroElements : ElementKernel {
  float* to;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each(block, thread, [&](int64_t i) { to[i] = 0; });
  }
};

/// to += from
template <class From, class To>
struct AddElements : WideKernel {
  const From* from;
  To* to;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    map(
        block, thread, to, [](float sum, float value) { return sum + value; }, to, from);
  }
};

/// elements += bias[channel], for elements [.., channels, positions].
template <class T>
struct AddBias : ElementKernel {
  int64_t channels, positions;
  const float* bias;
  T* elements;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each(block, thread, [&](int64_t i) {
      store_at(elements, i, value_at(elements, i) + bias[i / positions % channels]);
    });
  }
};

// GELU's tanh form uses sqrt(2 / pi) and this factor of x^3.
inline constexpr float kGeluSlope = 0.7978845608028654f, kGeluCube = 0.044715f;

template <class T>
struct ActivationForward : WideKernel {
  Activation activation;
  const T* input;
  T* output;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    map(
        block, thread, output, [this](float x) { return of(x); }, input);
  }
  TUTTI_DEVICE float of(float x) const {
    switch (activation) {
      case Activation::relu:
        return x <= 0 ? 0.0f : x;  // NaN stays NaN
      case Activation::tanh:
        return std::tanh(x);
      case Activation::gelu:
        return 0.5f * x * (1 + std::tanh(kGeluSlope * (x + kGeluCube * x * x * x)));
    }
    return x;
  }
};

template <class T>
struct ActivationBackward : WideKernel {
  Activation activation;
  const T* kept;
  const T* output_gradient;
  T* input_gradient;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    map(
        block, thread, input_gradient,
        [this](float gradient, float x) { return gradient * slope(x); }, output_gradient, kept);
  }
  TUTTI_DEVICE float slope(float x) const {
    switch (activation) {
      case Activation::relu:
        return x > 0 ? 1.0f : 0.0f;
      case Activation::tanh:
        return (1 - x) * (1 + x);
      case Activation::gelu: {
        const float t = std::tanh(kGeluSlope * (x + kGeluCube * x * x * x));
        return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kGeluSlope * (1 + 3 * kGeluCube * x * x);
      }
    }
    return 1;
  }
};

/// Four random numbers of Philox4x32-10 (Salmon et al. 2011), equal to those of random_block().
struct PhiloxBlock {
  uint32_t words[4];
};
TUTTI_DEVICE PhiloxBlock philox_block(uint64_t seed, uint32_t step, uint32_t purpose,
                                      uint64_t block) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = step, c3 = purpose;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xd2511f53u} * c0, b = uint64_t{0xcd9e8d57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Each thread draws a block of four random numbers for its four elements.
template <class T>
struct Dropout {
  using Shared = NothingShared;
  static constexpr int kPhases = 1;
  int64_t count;
  uint64_t first, seed;
  uint32_t step, purpose, threshold;  // a 24-bit random number below it drops the element
  float scale;
  const T* input;
  T* output;
  int64_t blocks() const {
    return count == 0 ? 0 : blocks_for(count + static_cast<int64_t>(first % 4), kLayerElements);
  }
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    const uint64_t word_block =
        first / 4 + static_cast<uint64_t>(block) * kThreads + static_cast<uint64_t>(thread);
    const auto drawn = philox_block(seed, step, purpose, word_block);
    for (int k = 0; k < 4; ++k) {
      const auto i = static_cast<int64_t>(word_block * 4 + static_cast<uint64_t>(k) - first);
      if (i < 0 || i >= count) continue;
      const bool is_dropped = (drawn.words[k] >> 8) < threshold;
      store_at(output, i, is_dropped ? 0.0f : value_at(input, i) * scale);
    }
  }
};

/// a_gradient = (output_gradient of the row) * b
template <class T>
struct RowProductsBackward : ElementKernel {
  int64_t row;  // elements per row
  const T* b;
  const T* output_gradient;
  T* a_gradient;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each(block, thread, [&](int64_t i) {
      store_at(a_gradient, i, value_at(output_gradient, i / row) * value_at(b, i));
    });
  }
};

/// Spreads the gradient of each channel's mean evenly over the channel's positions.
template <class T>
struct GlobalAverageBackward : ElementKernel {
  int64_t positions;
  const T* output_gradient;
  T* input_gradient;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each(block, thread, [&](int64_t i) {
      store_at(input_gradient, i,
               value_at(output_gradient, i / positions) / static_cast<float>(positions));
    });
  }
};

}  // namespace tutti::cuda
