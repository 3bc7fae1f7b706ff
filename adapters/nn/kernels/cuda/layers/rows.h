#pragma once

// Kernels in which each block handles one row: softmax, losses, layer norm, products.

#include "tutti/adapters/nn/kernels/cuda/layers/elements.h"
#include "tutti/adapters/nn/kernels/cuda/layers/kernel.h"

namespace tutti::cuda {

/// Calls body(i) for each of a thread's elements of a row.
template <class Body>
TUTTI_DEVICE void each_of_row(int64_t elements, int thread, Body body) {
  for (int64_t i = thread; i < elements; i += kThreads) body(i);
}

/// Computes the log softmax of rows and, with labels, the loss of each row. A label that is not a
/// class makes the loss NaN, and is not used as an index.
template <class In, class Out>
struct SoftmaxForward {
  struct Shared {
    float largest[kThreads];
    double sums[kThreads];
  };
  static constexpr int kPhases = 2 * (1 + kHalves) + 1;
  int64_t rows, classes;
  const In* logits;
  const int64_t* labels;  // null if there are no losses
  Out* log_probabilities;
  float* losses;
  int64_t blocks() const { return rows; }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    const int64_t at = block * classes;
    if (phase == 0) {
      float most = -std::numeric_limits<float>::infinity();
      each_of_row(classes, thread, [&](int64_t i) {
        const float value = value_at(logits, at + i);
        if (value > most || value != value) most = value;
      });
      shared.largest[thread] = most;
    } else if (phase <= kHalves) {
      greater_half(shared.largest, thread, phase);
    } else if (phase == kHalves + 1) {
      double sum = 0;
      each_of_row(classes, thread, [&](int64_t i) {
        sum += static_cast<double>(std::exp(value_at(logits, at + i) - shared.largest[0]));
      });
      shared.sums[thread] = sum;
    } else if (phase <= 2 * kHalves + 1) {
      add_half(shared.sums, thread, phase - kHalves - 1);
    } else {
      const auto log_sum = static_cast<float>(std::log(shared.sums[0]));
      const int64_t label = labels == nullptr ? -1 : labels[block];
      each_of_row(classes, thread, [&](int64_t i) {
        const float result = value_at(logits, at + i) - shared.largest[0] - log_sum;
        store_at(log_probabilities, at + i, result);
        if (i == label) losses[block] = -result;
      });
      if (labels != nullptr && thread == 0 && (label < 0 || label >= classes))
        losses[block] = std::numeric_limits<float>::quiet_NaN();
    }
  }
};

/// logit_gradient = (softmax - one_hot(label)) * scale
template <class T>
struct CrossEntropyBackward {
  using Shared = NothingShared;
  static constexpr int kPhases = 1;
  int64_t rows, classes;
  const float* log_probabilities;
  const int64_t* labels;
  float scale;
  T* logit_gradient;
  int64_t blocks() const { return rows; }
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    const int64_t at = block * classes, label = labels[block];
    each_of_row(classes, thread, [&](int64_t i) {
      const float share = std::exp(log_probabilities[at + i]) - (i == label ? 1.0f : 0.0f);
      store_at(logit_gradient, at + i, share * scale);
    });
  }
};

/// dx = dy - softmax * the row's sum of dy
template <class T>
struct LogSoftmaxBackward {
  using Shared = Sum;
  static constexpr int kPhases = kHalves + 2;
  int64_t rows, classes;
  const T* output;
  const T* output_gradient;
  T* input_gradient;
  int64_t blocks() const { return rows; }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    const int64_t at = block * classes;
    if (phase == 0) {
      double sum = 0;
      each_of_row(classes, thread, [&](int64_t i) {
        sum += static_cast<double>(value_at(output_gradient, at + i));
      });
      shared.all[thread] = sum;
    } else if (phase <= kHalves) {
      add_half(shared.all, thread, phase);
    } else {
      const auto sum = static_cast<float>(shared.value());
      each_of_row(classes, thread, [&](int64_t i) {
        store_at(input_gradient, at + i,
                 value_at(output_gradient, at + i) - std::exp(value_at(output, at + i)) * sum);
      });
    }
  }
};

/// losses = -input[label], or NaN for a label that is not a class.
template <class T>
struct LikelihoodForward {
  using Shared = NothingShared;
  static constexpr int kPhases = 1;
  int64_t rows, classes;
  const T* input;
  const int64_t* labels;
  float* losses;
  int64_t blocks() const { return blocks_for(rows, kThreads); }
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    const int64_t row = block * kThreads + thread;
    if (row >= rows) return;
    const int64_t label = labels[row];
    losses[row] = label < 0 || label >= classes ? std::numeric_limits<float>::quiet_NaN()
                                                : -value_at(input, row * classes + label);
  }
};

template <class T>
struct LikelihoodBackward {
  using Shared = NothingShared;
  static constexpr int kPhases = 1;
  int64_t rows, classes;
  const int64_t* labels;
  float scale;
  T* input_gradient;
  int64_t blocks() const { return rows; }
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each_of_row(classes, thread, [&](int64_t i) {
      store_at(input_gradient, block * classes + i, i == labels[block] ? -scale : 0.0f);
    });
  }
};

/// Selects what RowSums computes for a row.
enum class RowSum : int32_t { squared_errors, products, values };

/// Computes for each row the mean of (a - b)^2, the sum of a * b, or the mean of a.
template <class T, class Out>
struct RowSums {
  using Shared = Sum;
  static constexpr int kPhases = kHalves + 2;
  RowSum kind;
  int64_t rows, elements;
  const T* a;
  const T* b;  // null if only `a` is used
  Out* results;
  int64_t blocks() const { return rows; }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    if (phase == 0) {
      double sum = 0;
      each_of_row(elements, thread, [&](int64_t i) {
        const float x = value_at(a, block * elements + i);
        if (kind == RowSum::values) {
          sum += static_cast<double>(x);
          return;
        }
        const float y = value_at(b, block * elements + i);
        if (kind == RowSum::products)
          sum += static_cast<double>(x) * static_cast<double>(y);
        else
          sum += static_cast<double>(x - y) * static_cast<double>(x - y);
      });
      shared.all[thread] = sum;
    } else if (phase <= kHalves) {
      add_half(shared.all, thread, phase);
    } else if (thread == 0) {
      const double sum = shared.value();
      const double result = kind == RowSum::products ? sum : sum / static_cast<double>(elements);
      store_at(results, block, static_cast<float>(result));
    }
  }
};

/// input_gradient = factor * (input - target)
template <class T>
struct SquaredErrorBackward {
  using Shared = NothingShared;
  static constexpr int kPhases = 1;
  int64_t rows, elements;
  float factor;
  const T* input;
  const T* target;
  T* input_gradient;
  int64_t blocks() const { return rows; }
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each_of_row(elements, thread, [&](int64_t k) {
      const int64_t i = block * elements + k;
      store_at(input_gradient, i, factor * (value_at(input, i) - value_at(target, i)));
    });
  }
};

/// Base of kernels over [rows, features] in which the lanes of one warp handle each row.
struct LaneRows {
  int64_t rows, features;
  int64_t blocks() const { return blocks_for(rows, kRowsOfBlock); }
  TUTTI_DEVICE int64_t row(int64_t block, int thread) const {
    return block * kRowsOfBlock + thread / kLanes;
  }
  /// Calls body(i) for each of a lane's elements of a row.
  template <class Body>
  TUTTI_DEVICE void each(int thread, Body body) const {
    for (int64_t i = thread % kLanes; i < features; i += kLanes) body(i);
  }
};

template <class T>
struct LayerNormForward : LaneRows {
  using Shared = TwoSums;
  static constexpr int kPhases = 2 * (1 + kLaneHalves) + 1;
  double epsilon;
  const T* input;
  const float* weight;
  const float* bias;
  T* output;
  float* statistics;  // [rows, 2]: mean, 1 / sqrt(variance + epsilon)
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    if (phase > 0 && phase <= kLaneHalves) return add_lanes(shared.first, thread, phase);
    if (phase > kLaneHalves + 1 && phase <= 2 * kLaneHalves + 1)
      return add_lanes(shared.second, thread, phase - kLaneHalves - 1);
    const int64_t row = this->row(block, thread), at = row * features;
    if (row >= rows) return;
    const int first = thread - thread % kLanes;
    const auto count = static_cast<double>(features);
    if (phase == 0) {
      double sum = 0;
      each(thread, [&](int64_t i) { sum += static_cast<double>(value_at(input, at + i)); });
      shared.first[thread] = sum;
    } else if (phase == kLaneHalves + 1) {
      const double average = shared.first[first] / count;
      double squares = 0;
      each(thread, [&](int64_t i) {
        const double difference = static_cast<double>(value_at(input, at + i)) - average;
        squares += difference * difference;
      });
      shared.second[thread] = squares;
    } else {
      const auto mean = static_cast<float>(shared.first[first] / count);
      const auto inverse =
          static_cast<float>(1 / std::sqrt(shared.second[first] / count + epsilon));
      if (thread == first) {
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = inverse;
      }
      each(thread, [&](int64_t i) {
        store_at(output, at + i, (value_at(input, at + i) - mean) * inverse * weight[i] + bias[i]);
      });
    }
  }
};

template <class T>
struct LayerNormBackward : LaneRows {
  using Shared = TwoSums;
  static constexpr int kPhases = kLaneHalves + 2;
  const T* input;
  const float* statistics;
  const float* weight;
  const T* output_gradient;
  T* input_gradient;
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    if (phase > 0 && phase <= kLaneHalves) {
      add_lanes(shared.first, thread, phase);
      return add_lanes(shared.second, thread, phase);
    }
    const int64_t row = this->row(block, thread), at = row * features;
    if (row >= rows) return;
    const float mean = statistics[2 * row], inverse = statistics[2 * row + 1];
    const auto gradient = [&](int64_t i) { return value_at(output_gradient, at + i) * weight[i]; };
    if (phase == 0) {
      double sum = 0, products = 0;
      each(thread, [&](int64_t i) {
        const auto wide = static_cast<double>(gradient(i));
        sum += wide;
        products += wide * static_cast<double>(value_at(input, at + i) - mean);
      });
      shared.first[thread] = sum;
      shared.second[thread] = products;
    } else {
      const int first = thread - thread % kLanes;
      const auto count = static_cast<double>(features);
      const auto base = static_cast<float>(shared.first[first] / count);
      const auto wide = static_cast<double>(inverse);
      const auto slope = static_cast<float>(shared.second[first] / count * wide * wide);
      each(thread, [&](int64_t i) {
        store_at(input_gradient, at + i,
                 inverse * (gradient(i) - base - (value_at(input, at + i) - mean) * slope));
      });
    }
  }
};

/// Each block handles kColumns columns in a part of the rows of [rows, columns], with kOfColumn
/// threads per column. It writes sums f64[parts, 2, columns]. The first ones are sums of the
/// gradients. The second ones, computed only with statistics, are sums of the gradients times the
/// normalised input of layer norm.
template <class T>
struct ColumnSums {
  static constexpr int kColumns = 32, kOfColumn = kThreads / kColumns;
  struct Shared {
    double products[kThreads], sums[kThreads];
  };
  static constexpr int kPhases = 2;
  int64_t rows, columns, parts;
  const T* output_gradient;
  const T* input;           // null if no products are needed
  const float* statistics;  // statistics of layer norm; null if no products are needed
  double* sums;
  int64_t blocks() const { return blocks_for(columns, kColumns) * parts; }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    const int64_t stripes = blocks_for(columns, kColumns), part = quotient(block, stripes);
    const int64_t column = (block - part * stripes) * kColumns + thread % kColumns;
    if (column >= columns) return;
    if (phase == 0) {
      const int64_t of_part = blocks_for(rows, parts);
      const int64_t end = (part + 1) * of_part < rows ? (part + 1) * of_part : rows;
      double product = 0, sum = 0;
      for (int64_t row = part * of_part + thread / kColumns; row < end; row += kOfColumn) {
        const int64_t i = row * columns + column;
        const float gradient = value_at(output_gradient, i);
        sum += static_cast<double>(gradient);
        if (input != nullptr)
          product += static_cast<double>(
              gradient * ((value_at(input, i) - statistics[2 * row]) * statistics[2 * row + 1]));
      }
      shared.products[thread] = product;
      shared.sums[thread] = sum;
    } else if (thread < kColumns) {
      double product = 0, sum = 0;
      for (int other = 0; other < kOfColumn; ++other) {
        product += shared.products[other * kColumns + thread];
        sum += shared.sums[other * kColumns + thread];
      }
      sums[2 * part * columns + column] = sum;
      sums[(2 * part + 1) * columns + column] = product;
    }
  }
};

/// Adds the sums of all parts, in their order, to the gradients.
struct ColumnTotals : ElementKernel {
  int64_t parts;
  const double* sums;
  float* products;  // null if there are none
  float* totals;
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    each(block, thread, [&](int64_t column) {
      double sum = 0, product = 0;
      for (int64_t part = 0; part < parts; ++part) {
        sum += sums[2 * part * count + column];
        product += sums[(2 * part + 1) * count + column];
      }
      totals[column] += static_cast<float>(sum);
      if (products != nullptr) products[column] += static_cast<float>(product);
    });
  }
};

}  // namespace tutti::cuda
