#pragma once

// These functions are the work of one block in an optimizer's step over all parameters, and in
// the norm of the gradients. They take the tile, the thread and the phase, and compile for the
// host too. All threads of a block wait for each other between two phases.

#include <cmath>
#include <vector>

#include "tutti/adapters/nn/kernels/step_kernels.h"
#include "tutti/kernels/cuda/pack/pack_tile.h"

namespace tutti::cuda {

/// One parameter, f32. Pointers to state that the optimizer does not use are null.
struct StepTensor {
  float* value;
  float* gradient;
  float *first, *second;
  int64_t count;
  bool is_adapted;  // true if layer_step_tile.h adapts the parameter's rate
};

/// The elements of one block: the index of their parameter, and the first element's index within
/// it.
struct StepTile {
  int64_t begin;
  int32_t tensor;
};

/// The operands of a step, made once for a set of parameters. All of it is in the device's memory.
struct StepTable {
  const StepTensor* tensors;
  const StepTile* tiles;
  double* squares;  // per tile
  int32_t tile_count;
};

/// The numbers of a step. They are in the device's memory, so that every step can use the same
/// launches or the same captured graph.
struct StepControl {
  // Set by the host.
  StepFactors factors = {};
  StepKind kind = StepKind::sgd;
  double gradient_factor = 1;  // for example 1 / (loss scale * samples)
  double clip = 0;             // if above 0, the largest norm after clipping
  // Set by settle_tile().
  double norm = 0;  // norm of the gradients times gradient_factor
  double multiplier = 1;
  int32_t is_skipped = 0;  // 1 if the norm is not finite, so that some gradient is not
};

inline constexpr int64_t kStepElements = 16 * kThreads;  // per block
inline constexpr int kSumPhases = 9;  // phases that halve kThreads until one is left
static_assert(kThreads == 1 << (kSumPhases - 1));

/// Returns the tiles of the given parameters.
inline std::vector<StepTile> step_tiles(std::span<const StepTensor> tensors) {
  std::vector<StepTile> tiles;
  for (size_t i = 0; i < tensors.size(); ++i)
    for (int64_t begin = 0; begin < tensors[i].count; begin += kStepElements)
      tiles.push_back({begin, static_cast<int32_t>(i)});
  return tiles;
}

// Loads four consecutive elements, with one instruction if they are aligned to 16 bytes.
TUTTI_DEVICE Pack<float, 4> load_four(const float* from, int64_t count) {
  if (count >= 4 && is_aligned(from, 16)) return *reinterpret_cast<const Pack<float, 4>*>(from);
  Pack<float, 4> four{};
  for (int i = 0; i < 4 && i < count; ++i) four.values[i] = from[i];
  return four;
}

TUTTI_DEVICE void store_four(float* to, const Pack<float, 4>& four, int64_t count) {
  if (count >= 4 && is_aligned(to, 16))
    *reinterpret_cast<Pack<float, 4>*>(to) = four;
  else
    for (int i = 0; i < 4 && i < count; ++i) to[i] = four.values[i];
}

/// Sums `shared`, one number per thread, in a fixed order, in phases that count from 1. After the
/// last phase the sum is in shared[0].
TUTTI_DEVICE void sum_phase(int thread, int phase, double* shared) {
  const int half = kThreads >> phase;
  if (thread < half) shared[thread] += shared[thread + half];
}

/// Sums the squares of a tile's gradients in f64. The first kSumPhases phases add, and one more
/// phase stores the sum. `shared` holds kThreads numbers of the block.
TUTTI_DEVICE void squares_tile(const StepTable& table, int32_t tile, int thread, int phase,
                               double* shared) {
  if (phase == kSumPhases) {
    if (thread == 0) table.squares[tile] = shared[0];
    return;
  }
  if (phase > 0) return sum_phase(thread, phase, shared);
  const auto [begin, index] = table.tiles[tile];
  const auto& tensor = table.tensors[index];
  double sum = 0;
  for (int64_t at = 4 * thread; at < kStepElements; at += 4 * kThreads) {
    const int64_t left = tensor.count - begin - at;
    if (left <= 0) break;
    const auto four = load_four(tensor.gradient + begin + at, left);
    for (const float value : four.values)
      sum += static_cast<double>(value) * static_cast<double>(value);
  }
  shared[thread] = sum;
}

/// Computes the norm of all gradients from the tiles' sums. Then it sets the multiplier, or marks
/// the step as skipped if the norm is not finite. One block runs this.
TUTTI_DEVICE void settle_tile(const StepTable& table, StepControl& control, int thread, int phase,
                              double* shared) {
  if (phase == 0) {
    double sum = 0;
    for (int32_t tile = thread; tile < table.tile_count; tile += kThreads)
      sum += table.squares[tile];
    shared[thread] = sum;
  } else if (phase < kSumPhases) {
    sum_phase(thread, phase, shared);
  } else if (thread == 0) {
    const double factor = control.gradient_factor;
    control.norm = std::sqrt(shared[0]) * factor;
    control.is_skipped = !(control.norm - control.norm == 0);
    const bool is_clipped = control.clip > 0 && control.norm > control.clip;
    control.multiplier = is_clipped ? factor * control.clip / control.norm : factor;
  }
}

/// Updates one element like adapters/nn/kernels/optimizer_steps.cc and returns its new value.
template <StepKind kKind>
TUTTI_DEVICE float stepped(const StepFactors& f, float w, float gradient, float& first,
                           float& second, bool has_first, bool has_second) {
  const float g = gradient + f.decay * w;
  float change = 0;
  if constexpr (kKind == StepKind::sgd) {
    change = f.rate * g;
    if (has_first) {
      first = f.momentum * first + g;
      change = f.rate * (f.direct * g + f.carried * first);
    }
  } else if constexpr (kKind == StepKind::adam) {
    first = f.beta1 * first + f.rest1 * g;
    second = f.beta2 * second + f.rest2 * g * g;
    change = f.rate * first / (std::sqrt(second) * f.correction + f.epsilon);
  } else {
    first = f.keep * first + f.rest * g * g;
    float v = g / (std::sqrt(first) + f.epsilon);
    if (has_second) {
      v = f.momentum * second + v;
      second = v;
    }
    change = f.rate * v;
  }
  return f.kept * w - change;
}

template <StepKind kKind>
TUTTI_DEVICE void step_tile_of(const StepTensor& tensor, int64_t begin, const StepFactors& factors,
                               float multiplier, int thread, int threads) {
  const bool has_first = tensor.first != nullptr, has_second = tensor.second != nullptr;
  for (int64_t at = begin + 4 * thread; at < begin + kStepElements; at += 4 * threads) {
    const int64_t left = tensor.count - at;
    if (left <= 0) break;
    auto w = load_four(tensor.value + at, left);
    const auto g = load_four(tensor.gradient + at, left);
    Pack<float, 4> first{}, second{};
    if (has_first) first = load_four(tensor.first + at, left);
    if (has_second) second = load_four(tensor.second + at, left);
    for (int i = 0; i < 4; ++i)
      w.values[i] = stepped<kKind>(factors, w.values[i], g.values[i] * multiplier, first.values[i],
                                   second.values[i], has_first, has_second);
    store_four(tensor.value + at, w, left);
    if (has_first) store_four(tensor.first + at, first, left);
    if (has_second) store_four(tensor.second + at, second, left);
  }
}

/// Updates a tile's elements unless the step is skipped. Gradients are scaled as they are read.
TUTTI_DEVICE void step_tile(const StepTable& table, const StepControl& control, int32_t tile,
                            int thread, int threads) {
  if (control.is_skipped) return;
  const auto [begin, index] = table.tiles[tile];
  const auto& tensor = table.tensors[index];
  const auto multiplier = static_cast<float>(control.multiplier);
  switch (control.kind) {
    case StepKind::sgd:
      return step_tile_of<StepKind::sgd>(tensor, begin, control.factors, multiplier, thread,
                                         threads);
    case StepKind::adam:
      return step_tile_of<StepKind::adam>(tensor, begin, control.factors, multiplier, thread,
                                          threads);
    case StepKind::rms_prop:
      return step_tile_of<StepKind::rms_prop>(tensor, begin, control.factors, multiplier, thread,
                                              threads);
  }
}

// --- as kernels ----------------------------------------------------------------------------------

/// GradientSquares sums each tile's squares. SettleStep computes the norm of all gradients from
/// them and decides whether the step is skipped.
struct GradientSquares {
  struct Shared {
    double all[kThreads];
  };
  static constexpr int kPhases = kSumPhases + 1;
  StepTable table;
  int64_t blocks() const { return table.tile_count; }
  TUTTI_DEVICE void run(int64_t block, int thread, int phase, Shared& shared) const {
    squares_tile(table, static_cast<int32_t>(block), thread, phase, shared.all);
  }
};
struct SettleStep {
  struct Shared {
    double all[kThreads];
  };
  static constexpr int kPhases = kSumPhases + 1;
  StepTable table;
  StepControl* control;
  int64_t blocks() const { return 1; }
  TUTTI_DEVICE void run(int64_t, int thread, int phase, Shared& shared) const {
    settle_tile(table, *control, thread, phase, shared.all);
  }
};
/// Scales the gradients by the multiplier that SettleStep computed, unless the step is skipped.
struct ScaleGradients {
  struct Shared {};
  static constexpr int kPhases = 1;
  StepTable table;
  const StepControl* control;
  int64_t blocks() const { return table.tile_count; }
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    if (control->is_skipped) return;
    const auto [begin, index] = table.tiles[block];
    const auto& tensor = table.tensors[index];
    const auto multiplier = static_cast<float>(control->multiplier);
    for (int64_t at = begin + 4 * thread; at < begin + kStepElements; at += 4 * kThreads) {
      const int64_t left = tensor.count - at;
      if (left <= 0) break;
      auto four = load_four(tensor.gradient + at, left);
      for (float& value : four.values) value *= multiplier;
      store_four(tensor.gradient + at, four, left);
    }
  }
};
/// Does the optimizer's step over all parameters.
struct StepParameters {
  struct Shared {};
  static constexpr int kPhases = 1;
  StepTable table;
  const StepControl* control;
  int64_t blocks() const { return table.tile_count; }
  TUTTI_DEVICE void run(int64_t block, int thread, int, Shared&) const {
    step_tile(table, *control, static_cast<int32_t>(block), thread, kThreads);
  }
};

}  // namespace tutti::cuda
