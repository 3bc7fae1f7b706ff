#pragma once

// What the kernels of layers and steps are made of. A kernel is a struct of plain values with
//   int64_t blocks() const                     how many blocks it has; none: nothing to do
//   static constexpr int kPhases               between two of them all threads of a block wait
//   struct Shared                              what the threads of a block share
//   void run(block, thread, phase, shared)     one thread's part of one phase
// A GPU runs it as run_kernel() of launch.cu does, the host as run_on_host(). All memory is dense
// and row-major. Nothing is added up in an order that differs from run to run.

#include <cmath>
#include <limits>
#include <utility>

#include "tutti/kernels/cuda/pack/pack_tile.h"

namespace tutti::cuda {

struct NothingShared {};

inline constexpr int64_t kLayerElements = 4 * kThreads;  // of one block, where each has its own

TUTTI_DEVICE int64_t blocks_for(int64_t count, int64_t each) { return (count + each - 1) / each; }

/// An element of f32, bf16 or f16 storage, in f32.
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

/// Elements that a thread loads and stores at once, where memory is aligned.
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

/// a / b of numbers that are not negative: where both have 32 bits a few instructions, else a call.
TUTTI_DEVICE int64_t quotient(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

// --- sums of a block -----------------------------------------------------------------------------

// Phases 1 to kHalves add up one number a thread by halves; what came before is phase 0, and the
// sum is in the first place from phase kHalves + 1 on.
inline constexpr int kHalves = 8;
static_assert(kThreads == 1 << kHalves);

struct Sum {
  double all[kThreads];
  TUTTI_DEVICE double value() const { return all[0]; }
};
struct TwoSums {
  double first[kThreads], second[kThreads];
};

/// `half` counts from 1.
TUTTI_DEVICE void add_half(double* all, int thread, int half) {
  const int count = kThreads >> half;
  if (thread < count) all[thread] += all[thread + count];
}
TUTTI_DEVICE void greater_half(float* all, int thread, int half) {
  const int count = kThreads >> half;
  // NaN is larger than all, so that it is not lost.
  if (thread < count && !(all[thread + count] <= all[thread]) && all[thread] == all[thread])
    all[thread] = all[thread + count];
}

// --- rows of which a warp has one --------------------------------------------------------------

/// A block has so many rows, and a row so many threads. Phases 1 to kLaneHalves add up what the
/// lanes of each row have; the first one then has the result.
inline constexpr int kLanes = 32, kRowsOfBlock = kThreads / kLanes, kLaneHalves = 5;

/// `half` counts from 1.
template <class Number>
TUTTI_DEVICE void add_lanes(Number* all, int thread, int half) {
  const int count = kLanes >> half;
  if (thread % kLanes < count) all[thread] += all[thread + count];
}
TUTTI_DEVICE void greater_lanes(float* all, int thread, int half) {
  const int count = kLanes >> half;
  // NaN is larger than all, so that it is not lost.
  if (thread % kLanes < count && !(all[thread + count] <= all[thread]) &&
      all[thread] == all[thread])
    all[thread] = all[thread + count];
}

// --- on the host ---------------------------------------------------------------------------------

/// Runs a kernel as a GPU might: blocks, and within a phase threads, in rising or falling order.
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
