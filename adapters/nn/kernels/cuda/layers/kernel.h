#pragma once

// The building blocks of the kernels of layers and steps. A kernel is a struct of plain values with
//   int64_t blocks() const                     number of blocks; 0 means nothing to do
//   static constexpr int kPhases               number of phases, between which a block synchronizes
//   struct Shared                              memory that the threads of a block share
//   void run(block, thread, phase, shared)     one thread's part of one phase
// A GPU runs it through run_kernel() of launch_layers.cu, the host through run_on_host(). All
// memory is dense and row-major. Sums are always added in the same order.

#include <cmath>
#include <limits>
#include <utility>

#include "tutti/kernels/cuda/pack/pack_tile.h"

namespace tutti::cuda {

struct NothingShared {};

/// The number of elements per block, in kernels whose blocks handle separate elements.
inline constexpr int64_t kLayerElements = 4 * kThreads;

TUTTI_DEVICE int64_t blocks_for(int64_t count, int64_t each) { return (count + each - 1) / each; }

/// Loads an element that is stored as f32, bf16 or f16, and returns it as f32.
template <class T>
TUTTI_DEVICE float value_at(const T* from, int64_t i) {
  if constexpr (IsNarrow<T>::value)
    return widen(from[i]);
  else
    return from[i];
}
template <class T>
TUTTI_DEVICE void store_at(T* to, int64_t i, float value) {
  if constexpr (IsNarrow<T>::value)
    to[i] = narrow<T>(value);
  else
    to[i] = value;
}

/// Number of elements that a thread loads and stores as one pack if the memory is aligned.
inline constexpr int kWide = 8;
template <class T>
struct alignas(16) WidePack {
  T each[kWide];
};
TUTTI_DEVICE bool is_wide(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory) % 16 == 0;
}
template <class T>
TUTTI_DEVICE void load_wide(const T* from, float (&values)[kWide]) {
  if (is_wide(from)) {
    const auto pack = *reinterpret_cast<const WidePack<T>*>(from);
    for (int k = 0; k < kWide; ++k) values[k] = value_at(pack.each, k);
  } else {
    for (int k = 0; k < kWide; ++k) values[k] = value_at(from, k);
  }
}
template <class T>
TUTTI_DEVICE void store_wide(T* to, const float (&values)[kWide]) {
  if (is_wide(to)) {
    WidePack<T> pack;
    for (int k = 0; k < kWide; ++k) store_at(pack.each, k, values[k]);
    *reinterpret_cast<WidePack<T>*>(to) = pack;
  } else {
    for (int k = 0; k < kWide; ++k) store_at(to, k, values[k]);
  }
}

/// Returns a / b for nonnegative numbers. If both fit into 32 bits this takes a few instructions,
/// else a function call.
TUTTI_DEVICE int64_t quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

// --- sums of a block -----------------------------------------------------------------------------

// Sums one number per thread by halving. Phase 0 computes the numbers, and phases 1 to kHalves add
// them up. From phase kHalves + 1 on, the sum is in element 0.
inline constexpr int kHalves = 8;
static_assert(kThreads == 1 << kHalves);

struct Sum {
  double all[kThreads];
  TUTTI_DEVICE double value() const { return all[0]; }
};
struct TwoSums {
  double first[kThreads], second[kThreads];
};

/// One step of a tree reduction: adds the upper half of the values to the lower half. `half` is
/// the number of the step, from 1.
TUTTI_DEVICE void add_half(double* all, int thread, int half) {
  const int count = kThreads >> half;
  if (thread < count) all[thread] += all[thread + count];
}
TUTTI_DEVICE void greater_half(float* all, int thread, int half) {
  const int count = kThreads >> half;
  // NaN counts as the largest, so that it is not lost.
  if (thread < count && !(all[thread + count] <= all[thread]) && all[thread] == all[thread])
    all[thread] = all[thread + count];
}

// --- rows, each handled by one warp --------------------------------------------------------------

/// A block handles kRowsOfBlock rows with kLanes threads each. Phases 1 to kLaneHalves sum the
/// numbers of each row's lanes; the row's first lane then has the result.
inline constexpr int kLanes = 32, kRowsOfBlock = kThreads / kLanes, kLaneHalves = 5;

/// One step of a tree reduction in each row: adds the upper half of the row's lanes to the lower
/// half. `half` is the number of the step, from 1.
template <class Number>
TUTTI_DEVICE void add_lanes(Number* all, int thread, int half) {
  const int count = kLanes >> half;
  if (thread % kLanes < count) all[thread] += all[thread + count];
}
TUTTI_DEVICE void greater_lanes(float* all, int thread, int half) {
  const int count = kLanes >> half;
  // NaN counts as the largest, so that it is not lost.
  if (thread % kLanes < count && !(all[thread + count] <= all[thread]) &&
      all[thread] == all[thread])
    all[thread] = all[thread + count];
}

// --- on the host ---------------------------------------------------------------------------------

/// Runs a kernel on the host. Blocks, and the threads within a phase, run one after another. They
/// run in descending order if `is_backward` is true. A GPU may use any order.
template <class Kernel>
void run_on_host(const Kernel& kernel, bool is_backward) {
  typename Kernel::Shared shared;
  const int64_t blocks = kernel.blocks();
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t block = is_backward ? blocks - 1 - i : i;
    for (int phase = 0; phase < Kernel::kPhases; ++phase)
      if (is_backward)
        for (int thread = kThreads; thread-- > 0;) kernel.run(block, thread, phase, shared);
      else
        for (int thread = 0; thread < kThreads; ++thread) kernel.run(block, thread, phase, shared);
  }
}

}  // namespace tutti::cuda
