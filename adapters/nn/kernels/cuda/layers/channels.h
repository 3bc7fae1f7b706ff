#pragma once

// Kernels for images [batch, channels, positions]: batch norm and sums over a channel.

#include "tutti/adapters/nn/kernels/cuda/layers/elements.h"
#include "tutti/adapters/nn/kernels/cuda/layers/kernel.h"

namespace tutti::cuda {

struct Channels {
  int64_t batch, channels, positions;
  TUTTI_DEVICE int64_t values() const { return batch * positions; }
  /// Calls body(offset) for each of a thread's values of a channel, in the order of images.
  template <class Body>
  TUTTI_DEVICE void each(int64_t channel, int thread, Body body) const {
    if (positions == 0) return;
    int64_t image = thread / positions, at = thread % positions;
    while (image < batch) {
      body((image * channels + channel) * positions + at);
      for (at += kThreads; at >= positions; at -= positions) ++image;
    }
  }
};

/// Each block sums a part of a channel's values into sums f64[2, channels, parts]. In forward these
/// are the sums of the values and of their squares. In backward they are the sums of the output
/// gradient and of its product with (input - mean).
template <class T>
struct BatchNormSums {
  using Shared = TwoSums;
  static constexpr int kPhases = kHalves + 2;
  Channels shape;
  int64_t parts;
  const T* input;
  const T* output_gradient;  // null in forward
  const float* mean;
  double* sums;
  int64_t blocks() const { return shape.channels * parts; }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    if (phase == 0) {
      const int64_t channel = quotient(block, parts), part = block - channel * parts;
      const bool is_packed = shape.positions % kWide == 0;
      const int64_t each = is_packed ? kWide : 1, of_image = shape.positions / each;
      const int64_t packs = shape.batch * of_image, of_part = blocks_for(packs, parts);
      const int64_t end = (part + 1) * of_part < packs ? (part + 1) * of_part : packs;
      const float middle = output_gradient == nullptr ? 0.0f : mean[channel];
      double first = 0, second = 0;
      for (int64_t pack = part * of_part + thread; pack < end; pack += kThreads) {
        const int64_t image = quotient(pack, of_image);
        const int64_t at =
            (image * shape.channels + channel) * shape.positions + (pack - image * of_image) * each;
        if (is_packed) {
          float values[kWide], gradients[kWide];
          load_wide(input + at, values);
          if (output_gradient != nullptr) load_wide(output_gradient + at, gradients);
          for (int k = 0; k < kWide; ++k)
            add(values[k], output_gradient == nullptr ? 0.0f : gradients[k], middle, first, second);
        } else {
          add(value_at(input, at),
              output_gradient == nullptr ? 0.0f : value_at(output_gradient, at), middle, first,
              second);
        }
      }
      shared.first[thread] = first;
      shared.second[thread] = second;
    } else if (phase <= kHalves) {
      add_half(shared.first, thread, phase);
      add_half(shared.second, thread, phase);
    } else if (thread == 0) {
      sums[block] = shared.first[0];
      sums[shape.channels * parts + block] = shared.second[0];
    }
  }
  TUTTI_DEVICE void add(float x, float gradient, float middle, double& first,
                        double& second) const {
    const auto wide = static_cast<double>(output_gradient == nullptr ? x : gradient);
    first += wide;
    second += wide * static_cast<double>(output_gradient == nullptr ? x : x - middle);
  }
};

/// Computes `moments`, f64[1 + 2 * channels]. The first element is the number of values per
/// channel. Then follow each channel's first total, and each channel's second total times
/// inverse_deviation.
struct BatchNormMoments : ElementKernel {
  Channels shape;
  int64_t parts;
  const double* sums;
  const float* inverse_deviation;  // null counts as 1
  double* moments;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each(block, thread, [&](int64_t c) {
      double first = 0, second = 0;
      for (int64_t part = 0; part < parts; ++part) {
        first += sums[c * parts + part];
        second += sums[(shape.channels + c) * parts + part];
      }
      moments[1 + c] = first;
      moments[1 + shape.channels + c] = inverse_deviation == nullptr
                                            ? second
                                            : second * static_cast<double>(inverse_deviation[c]);
      if (c == 0) moments[0] = static_cast<double>(shape.values());
    });
  }
};

/// Computes each channel's statistics from the moments. In evaluation it takes them from the
/// running values, which then stay unchanged.
struct BatchNormStatistics : ElementKernel {
  const double* moments;  // null in evaluation
  double epsilon, momentum;
  float* mean;
  float* inverse_deviation;
  float* running_mean;
  float* running_variance;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each(block, thread, [&](int64_t c) {
      if (moments == nullptr) {
        mean[c] = running_mean[c];
        inverse_deviation[c] =
            static_cast<float>(1 / std::sqrt(static_cast<double>(running_variance[c]) + epsilon));
        return;
      }
      const double values = moments[0];
      const double average = values > 0 ? moments[1 + c] / values : 0;
      const double square = values > 0 ? moments[1 + count + c] / values : 0;
      const double difference = square - average * average;
      const double variance = difference > 0 ? difference : 0;
      mean[c] = static_cast<float>(average);
      inverse_deviation[c] = static_cast<float>(1 / std::sqrt(variance + epsilon));
      if (values == 0) return;
      mix(running_mean[c], average);
      mix(running_variance[c], values > 1 ? variance * values / (values - 1) : variance);
    });
  }
  TUTTI_DEVICE void mix(float& running, double value) const {
    running = static_cast<float>((1 - momentum) * static_cast<double>(running) + momentum * value);
  }
};

/// Base of kernels whose threads handle kWide consecutive elements: calls `body(element, channel)`
/// for each.
struct ChannelElements : WideKernel {
  Channels shape;
  template <class Body>
  TUTTI_DEVICE void each(int64_t begin, int64_t elements, Body body) const {
    const int64_t plane = quotient(begin, shape.positions);
    int64_t at = begin - plane * shape.positions;
    int64_t channel = plane - quotient(plane, shape.channels) * shape.channels;
    for (int k = 0; k < kWide && k < elements; ++k) {
      body(k, channel);
      if (++at < shape.positions) continue;
      at = 0;
      if (++channel == shape.channels) channel = 0;
    }
  }
};

template <class T>
struct BatchNormForward : ChannelElements {
  const T* input;
  const float* mean;
  const float* inverse_deviation;
  const float* weight;
  const float* bias;
  T* output;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    const int64_t begin = (block * kThreads + thread) * kWide, left = count - begin;
    if (left <= 0) return;
    const auto result = [&](float x, int64_t c) {
      return (x - mean[c]) * (inverse_deviation[c] * weight[c]) + bias[c];
    };
    if (left < kWide) {
      each(begin, left, [&](int k, int64_t c) {
        store_at(output, begin + k, result(value_at(input, begin + k), c));
      });
      return;
    }
    float values[kWide];
    load_wide(input + begin, values);
    each(begin, kWide, [&](int k, int64_t c) { values[k] = result(values[k], c); });
    store_wide(output + begin, values);
  }
};

/// If `moments` is null (evaluation), mean and deviation do not depend on the input.
template <class T>
struct BatchNormBackward : ChannelElements {
  const T* input;
  const float* mean;
  const float* inverse_deviation;
  const float* weight;
  const T* output_gradient;
  const double* moments;
  T* input_gradient;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    const int64_t begin = (block * kThreads + thread) * kWide, left = count - begin;
    if (left <= 0) return;
    const float share = moments == nullptr ? 0 : 1 / static_cast<float>(moments[0]);
    const auto result = [&](float x, float gradient, int64_t c) {
      const float deviation = inverse_deviation[c];
      if (moments != nullptr)
        gradient -= share * (static_cast<float>(moments[1 + c]) +
                             (x - mean[c]) * static_cast<float>(moments[1 + shape.channels + c]) *
                                 deviation);
      return weight[c] * deviation * gradient;
    };
    if (left < kWide) {
      each(begin, left, [&](int k, int64_t c) {
        const int64_t i = begin + k;
        store_at(input_gradient, i, result(value_at(input, i), value_at(output_gradient, i), c));
      });
      return;
    }
    float values[kWide], gradients[kWide];
    load_wide(input + begin, values);
    load_wide(output_gradient + begin, gradients);
    each(begin, kWide,
         [&](int k, int64_t c) { gradients[k] = result(values[k], gradients[k], c); });
    store_wide(input_gradient + begin, gradients);
  }
};

/// Adds the first sums of `moments` to bias_gradient, and the second sums to weight_gradient.
struct BatchNormWeights : ElementKernel {
  const double* moments;
  float* weight_gradient;
  float* bias_gradient;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each(block, thread, [&](int64_t c) {
      bias_gradient[c] += static_cast<float>(moments[1 + c]);
      weight_gradient[c] += static_cast<float>(moments[1 + count + c]);
    });
  }
};

/// gradient[channel] += the sum of its elements; each block handles a channel.
template <class T>
struct ChannelSums {
  using Shared = Sum;
  static constexpr int kPhases = kHalves + 2;
  Channels shape;
  const T* elements;
  float* gradient;
  int64_t blocks() const { return shape.channels; }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    if (phase == 0) {
      double sum = 0;
      shape.each(block, thread,
                 [&](int64_t at) { sum += static_cast<double>(value_at(elements, at)); });
      shared.all[thread] = sum;
    } else if (phase <= kHalves) {
      add_half(shared.all, thread, phase);
    } else if (thread == 0) {
      gradient[block] += static_cast<float>(shared.value());
    }
  }
};

}  // namespace tutti::cuda
