#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace tutti::benchmarks {

/// Whole numbers from 1 to 16 that differ between ranks. Their sums are exact in f32. They repeat
/// with a prime period, so data that are shifted by a chunk, a segment or a cache line are noticed.
class Pattern {
 public:
  static constexpr int64_t kPeriod = 8191;

  static Pattern of_rank(int rank) {
    return Pattern([=](int64_t i) { return value(rank, i); });
  }
  /// Returns the sum over all ranks, times `scale`.
  static Pattern reduced(int ranks, float scale = 1) {
    return Pattern([=](int64_t i) {
      float sum = 0;
      for (int rank = 0; rank < ranks; ++rank) sum += value(rank, i);
      return sum * scale;
    });
  }

  void fill(float* data, int64_t count) const {
    for (int64_t i = 0; i < count; i += kPeriod)
      std::memcpy(data + i, period_.data(), bytes_at(i, count));
  }
  int64_t count_wrong(const float* data, int64_t count) const {
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i += kPeriod) {
      if (std::memcmp(data + i, period_.data(), bytes_at(i, count)) == 0) continue;
      const auto length = static_cast<int64_t>(bytes_at(i, count) / sizeof(float));
      for (int64_t j = 0; j < length; ++j) wrong += data[i + j] != period_[static_cast<size_t>(j)];
    }
    return wrong;
  }

 private:
  template <class Value>
  explicit Pattern(Value value) : period_(kPeriod) {
    for (int64_t i = 0; i < kPeriod; ++i) period_[static_cast<size_t>(i)] = value(i);
  }
  static float value(int rank, int64_t i) {
    return static_cast<float>(1 + (i * 7 + rank * 5 + (i >> 5)) % 16);
  }
  static size_t bytes_at(int64_t i, int64_t count) {
    return static_cast<size_t>(std::min(kPeriod, count - i)) * sizeof(float);
  }
  std::vector<float> period_;
};

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<float[], Free>;

/// Allocates whole pages and touches each of them.
inline Buffer make_buffer(int64_t count) {
  constexpr size_t kPage = 4096;
  const auto bytes = (static_cast<size_t>(count) * sizeof(float) + kPage - 1) / kPage * kPage;
  auto* memory = static_cast<float*>(std::aligned_alloc(kPage, bytes));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0x3c, bytes);
  return Buffer(memory);
}

}  // namespace tutti::benchmarks
