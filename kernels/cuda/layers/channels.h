#pragma once

// Kernels of images [batch, channels, positions]: batch norm and what is summed over a channel.

#include "tutti/kernels/cuda/layers/elements.h"
#include "tutti/kernels/cuda/layers/kernel.h"

namespace tutti::cuda {

struct Channels {
  int64_t batch, channels, positions;
  TUTTI_DEVICE int64_t values() const { return batch * positions; }
  /// Calls body(place) for a thread's values of a channel, in the order of images.
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

/// A block has a channel. Moments, f64[1 + 2 * channels]: how many values a channel has, then a sum
/// and another sum for each channel: of the values and their squares, or with an output gradient of
/// that and of it times the normalised input.
template <class T>
struct BatchNormMoments {
  using Shared = TwoSums;
  static constexpr int kPhases = kHalves + 2;
  Channels shape;
  const T* input;
  const T* output_gradient;  // null: forward
  const float* mean;
  const float* inverse_deviation;
  double* moments;
  int64_t blocks() const { return shape.channels; }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    if (phase == 0) {
      double first = 0, second = 0;
      shape.each(block, thread, [&](int64_t at) {
        const float x = value_at(input, at);
        if (output_gradient == nullptr) {
          first += static_cast<double>(x);
          second += static_cast<double>(x) * static_cast<double>(x);
        } else {
          const auto gradient = static_cast<double>(value_at(output_gradient, at));
          first += gradient;
          second += gradient * static_cast<double>(x - mean[block]);
        }
      });
      shared.first[thread] = first;
      shared.second[thread] = second;
    } else if (phase <= kHalves) {
      add_half(shared.first, thread, phase);
      add_half(shared.second, thread, phase);
    } else if (thread == 0) {
      const double factor =
          output_gradient == nullptr ? 1.0 : static_cast<double>(inverse_deviation[block]);
      moments[1 + block] = shared.first[0];
      moments[1 + shape.channels + block] = shared.second[0] * factor;
      if (block == 0) moments[0] = static_cast<double>(shape.values());
    }
  }
};

/// Of each channel, from the moments; without moments from the running values, which stay.
struct BatchNormStatistics : ElementKernel {
  const double* moments;  // null: evaluation
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

template <class T>
struct BatchNormForward : ElementKernel {
  Channels shape;
  const T* input;
  const float* mean;
  const float* inverse_deviation;
  const float* weight;
  const float* bias;
  T* output;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each(block, thread, [&](int64_t i) {
      const int64_t c = i / shape.positions % shape.channels;
      store_at(output, i,
               (value_at(input, i) - mean[c]) * (inverse_deviation[c] * weight[c]) + bias[c]);
    });
  }
};

/// Without moments (evaluation) mean and deviation do not depend on the input.
template <class T>
struct BatchNormBackward : ElementKernel {
  Channels shape;
  const T* input;
  const float* mean;
  const float* inverse_deviation;
  const float* weight;
  const T* output_gradient;
  const double* moments;
  T* input_gradient;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each(block, thread, [&](int64_t i) {
      const int64_t c = i / shape.positions % shape.channels;
      float base = 0, slope = 0;
      if (moments != nullptr) {
        base = static_cast<float>(moments[1 + c] / moments[0]);
        slope = static_cast<float>(moments[1 + shape.channels + c] / moments[0] *
                                   static_cast<double>(inverse_deviation[c]));
      }
      const float gradient =
          value_at(output_gradient, i) - base - (value_at(input, i) - mean[c]) * slope;
      store_at(input_gradient, i, weight[c] * inverse_deviation[c] * gradient);
    });
  }
};

/// bias_gradient += first sums of the moments, weight_gradient += the second ones.
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

/// gradient[channel] += the sum of its elements; a block has a channel.
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
