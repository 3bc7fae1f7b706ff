#pragma once

// Kernels of LARS and LAMB, whose rates follow from two norms of each parameter. Three launches,
// for any number of parameters, compute the sums of each tile, the rate of each parameter, and the
// step. The arithmetic is that of adapters/nn/kernels/layerwise_steps.cc, except for the order in
// which squares are summed.

#include "tutti/adapters/nn/kernels/cuda/steps/step_tile.h"

namespace tutti::cuda {

/// The parameters of a step's kernels, and the memory for their intermediate results.
struct LayerStep {
  bool is_lamb;
  double learning_rate, weight_decay;
  double momentum, trust;                                  // LARS
  double beta1, beta2, epsilon, correction1, correction2;  // LAMB
  StepTable table;
  int32_t tensor_count;
  /// Two sums of squares per tile: one of values, and one of gradients (LARS) or updates (LAMB).
  double* squares;
  double* rates;  // rates per parameter
};

inline LayerStep layer_step_of(const LarsSettings& settings) {
  LayerStep step{};
  step.learning_rate = settings.learning_rate;
  step.weight_decay = settings.weight_decay;
  step.momentum = settings.momentum;
  step.trust = settings.trust;
  return step;
}
inline LayerStep layer_step_of(const LambSettings& settings) {
  LayerStep step{};
  step.is_lamb = true;
  step.learning_rate = settings.learning_rate;
  step.weight_decay = settings.weight_decay;
  step.beta1 = settings.beta1;
  step.beta2 = settings.beta2;
  step.epsilon = settings.epsilon;
  const auto t = static_cast<double>(settings.step);
  step.correction1 = 1 - std::pow(settings.beta1, t);
  step.correction2 = 1 - std::pow(settings.beta2, t);
  return step;
}

/// Calls body(i) for each of a thread's elements of a tile.
template <class Body>
TUTTI_DEVICE void each_of_tile(const StepTensor& tensor, int64_t begin, int thread, Body body) {
  for (int64_t i = begin + thread; i < begin + kStepElements && i < tensor.count; i += kThreads)
    body(i);
}

/// The results of a LAMB step for one element: its moments, not rounded yet, and its update.
struct LambElement {
  double first, second;
  float update;
};
TUTTI_DEVICE LambElement lamb_element(const LayerStep& step, const StepTensor& tensor, int64_t i) {
  const auto g = static_cast<double>(tensor.gradient[i]);
  const double m = step.beta1 * static_cast<double>(tensor.first[i]) + (1 - step.beta1) * g;
  const double v = step.beta2 * static_cast<double>(tensor.second[i]) + (1 - step.beta2) * g * g;
  const double decay = tensor.is_adapted ? step.weight_decay : 0;
  return {
      m, v,
      static_cast<float>(m / step.correction1 / (std::sqrt(v / step.correction2) + step.epsilon) +
                         decay * static_cast<double>(tensor.value[i]))};
}

/// Computes two sums of squares for each tile: of its values, and of LARS's gradients or LAMB's
/// updates. LAMB's step computes the updates again.
struct LayerSquares {
  struct Shared {
    double values[kThreads], others[kThreads];
  };
  static constexpr int kPhases = kSumPhases + 1;
  LayerStep step;
  int64_t blocks() const { return step.table.tile_count; }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    if (phase == kSumPhases) {
      if (thread > 0) return;
      step.squares[2 * block] = shared.values[0];
      step.squares[2 * block + 1] = shared.others[0];
    } else if (phase > 0) {
      sum_phase(thread, phase, shared.values);
      sum_phase(thread, phase, shared.others);
    } else {
      const auto [begin, index] = step.table.tiles[block];
      const auto& tensor = step.table.tensors[index];
      double values = 0, others = 0;
      each_of_tile(tensor, begin, thread, [&](int64_t i) {
        const auto value = static_cast<double>(tensor.value[i]);
        const auto other = static_cast<double>(step.is_lamb ? lamb_element(step, tensor, i).update
                                                            : tensor.gradient[i]);
        values += value * value;
        others += other * other;
      });
      shared.values[thread] = values;
      shared.others[thread] = others;
    }
  }
};

/// Computes the rates; each block handles one parameter.
struct LayerRates {
  struct Shared {
    double values[kThreads], others[kThreads];
  };
  static constexpr int kPhases = kSumPhases + 1;
  LayerStep step;
  int64_t blocks() const { return step.tensor_count; }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    const auto& tensor = step.table.tensors[block];
    if (phase == 0) {
      double values = 0, others = 0;
      const int64_t tiles = (tensor.count + kStepElements - 1) / kStepElements;
      const int64_t first = first_tile(block);
      for (int64_t tile = first + thread; tile < first + tiles; tile += kThreads) {
        values += step.squares[2 * tile];
        others += step.squares[2 * tile + 1];
      }
      shared.values[thread] = values;
      shared.others[thread] = others;
    } else if (phase < kSumPhases) {
      sum_phase(thread, phase, shared.values);
      sum_phase(thread, phase, shared.others);
    } else if (thread == 0) {
      step.rates[block] = step.learning_rate * ratio(tensor, shared.values[0], shared.others[0]);
    }
  }
  // Returns the first tile of a parameter. The tiles are in the order of the parameters.
  TUTTI_DEVICE int64_t first_tile(int64_t tensor) const {
    int32_t low = 0, high = step.table.tile_count;
    while (low < high) {
      const int32_t middle = (low + high) / 2;
      if (step.table.tiles[middle].tensor < tensor)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
  TUTTI_DEVICE double ratio(const StepTensor& tensor, double values, double others) const {
    if (!tensor.is_adapted || !(values > 0) || !(others > 0)) return 1;
    if (step.is_lamb) return std::sqrt(values) / std::sqrt(others);
    const double norm = std::sqrt(values);
    return step.trust * norm / (std::sqrt(others) + step.weight_decay * norm);
  }
};

struct LayerParameters {
  struct Shared {};
  static constexpr int kPhases = 1;
  LayerStep step;
  int64_t blocks() const { return step.table.tile_count; }
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    const auto [begin, index] = step.table.tiles[block];
    const auto& tensor = step.table.tensors[index];
    const double rate = step.rates[index], decay = tensor.is_adapted ? step.weight_decay : 0;
    each_of_tile(tensor, begin, thread, [&](int64_t i) {
      const auto value = static_cast<double>(tensor.value[i]);
      if (step.is_lamb) {
        const auto made = lamb_element(step, tensor, i);
        tensor.first[i] = static_cast<float>(made.first);
        tensor.second[i] = static_cast<float>(made.second);
        tensor.value[i] = static_cast<float>(value - rate * static_cast<double>(made.update));
      } else {
        const double change = static_cast<double>(tensor.gradient[i]) + decay * value;
        const auto velocity = static_cast<float>(
            step.momentum * static_cast<double>(tensor.first[i]) + rate * change);
        tensor.first[i] = velocity;
        tensor.value[i] -= velocity;
      }
    });
  }
};

}  // namespace tutti::cuda
