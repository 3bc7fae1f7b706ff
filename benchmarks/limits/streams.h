#pragma once

#include <cstdint>

namespace tutti::benchmarks {

/// Loops over whole 64-byte lines. `count` is a number of floats divisible by 16, the pointers are
/// aligned to lines. The forms with non-temporal stores write past the caches and end with a fence.
void copy(float* to, const float* from, int64_t count);
void copy_nt(float* to, const float* from, int64_t count);

/// Like copy_nt, but prefetches each line, bypassing the outer caches.
void copy_nt_ahead(float* to, const float* from, int64_t count);

/// Computes a = b = a + b, which is the work of a rank that can access both ranks' buffers.
void add_both(float* a, float* b, int64_t count);
void add_both_nt(float* a, float* b, int64_t count);

}  // namespace tutti::benchmarks
