#include "benchmarks/limits/streams.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tutti::benchmarks {

namespace {

// The widest vectors for which the compiler makes code.
#if defined(__AVX512F__)
constexpr int kWidth = 64;
#elif defined(__AVX__)
constexpr int kWidth = 32;
#else
constexpr int kWidth = 16;
#endif
using Vector = float __attribute__((vector_size(kWidth)));
constexpr int64_t kLanes = kWidth / 4;

Vector load(const float* from) {
  Vector value;
  std::memcpy(&value, from, kWidth);
  return value;
}

struct Plain {
  static void store(float* to, Vector value) { std::memcpy(to, &value, kWidth); }
  static void end() {}
};

struct NonTemporal {
  static void store(float* to, Vector value) {
#if defined(__AVX512F__)
    _mm512_stream_ps(to, value);
#elif defined(__AVX__)
    _mm256_stream_ps(to, value);
#elif defined(__x86_64__)
    _mm_stream_ps(to, value);
#else
    Plain::store(to, value);
#endif
  }
  static void end() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
  }
};

template <class Store>
void copy_by(float* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) Store::store(to + i, load(from + i));
  Store::end();
}

template <class Store>
void add_both_by(float* a, float* b, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vector sum = load(a + i) + load(b + i);
    Store::store(a + i, sum);
    Store::store(b + i, sum);
  }
  Store::end();
}

}  // namespace

void copy(float* to, const float* from, int64_t count) { copy_by<Plain>(to, from, count); }
void copy_nt(float* to, const float* from, int64_t count) { copy_by<NonTemporal>(to, from, count); }
void copy_nt_ahead(float* to, const float* from, int64_t count) {
  constexpr int64_t kLine = 16, kStep = 4 * kLine;  // floats
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    for (int64_t at = i; at < i + kStep; at += kLine) __builtin_prefetch(from + at + kStep, 0, 0);
    for (int64_t at = i; at < i + kStep; at += kLanes) NonTemporal::store(to + at, load(from + at));
  }
  copy_nt(to + i, from + i, count - i);
}
void add_both(float* a, float* b, int64_t count) { add_both_by<Plain>(a, b, count); }
void add_both_nt(float* a, float* b, int64_t count) { add_both_by<NonTemporal>(a, b, count); }

}  // namespace tutti::benchmarks
