#include "tools/bench/workload/exact_data.h"

#include <algorithm>
#include <cstring>

#include "tutti/kernels/convert.h"

namespace tutti::bench {

namespace {

// Whole numbers up to 256 are exact in bf16 reductions, and i8 ends at 127.
constexpr int64_t kLargest = 120;

// The finalizer of splitmix64.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

int64_t scatter(int rank, int64_t i, int64_t choices) {
  const auto seed = (static_cast<uint64_t>(rank) << 32) + static_cast<uint64_t>(i) + 1;
  return static_cast<int64_t>(mix(seed * 0x9e3779b97f4a7c15) % static_cast<uint64_t>(choices));
}

template <class T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

void encode(DataType dtype, int64_t value, std::byte* at) {
  switch (dtype) {
    case DataType::f64:
      return put(at, static_cast<double>(value));
    case DataType::f32:
      return put(at, static_cast<float>(value));
    case DataType::f16:
      return put(at, to_float16(static_cast<float>(value)));
    case DataType::bf16:
      return put(at, to_bfloat16(static_cast<float>(value)));
    case DataType::boolean:
      return put(at, static_cast<uint8_t>(value != 0));
    default:
      // Integers of every width wrap in the same way. The low bytes come first, because the machine
      // is little-endian.
      std::memcpy(at, &value, static_cast<size_t>(size_of(dtype)));
  }
}

}  // namespace

int64_t ExactData::input(int rank, int64_t i) const {
  i %= kPeriod;
  if (dtype_ == DataType::boolean) return scatter(rank, i, 2);
  switch (op_) {
    case ReduceOp::sum:
      return 1 + scatter(rank, i, std::clamp<int64_t>(kLargest / ranks_, 1, 5));
    case ReduceOp::average: {
      // One rank has one more than the mean, and the next rank has one less.
      const int64_t mean = 1 + scatter(0, i, std::clamp<int64_t>(kLargest / ranks_ - 1, 1, 5));
      if (ranks_ == 1) return mean;
      return mean + (rank == i % ranks_) - (rank == (i + 1) % ranks_);
    }
    case ReduceOp::product:
      // The product is at most 2^14, which all but the 8-bit integers hold. Those wrap, which is
      // exact too.
      return rank < 14 ? 1 + scatter(rank, i, 2) : 1;
    default:
      return 1 + scatter(rank, i, kLargest);
  }
}

int64_t ExactData::reduced(int64_t i) const {
  int64_t result = input(0, i);
  for (int rank = 1; rank < ranks_; ++rank) {
    const int64_t other = input(rank, i);
    switch (op_) {
      case ReduceOp::sum:
      case ReduceOp::average:
        result += other;
        break;
      case ReduceOp::min:
        result = std::min(result, other);
        break;
      case ReduceOp::max:
        result = std::max(result, other);
        break;
      case ReduceOp::product:
        result *= other;
        break;
      case ReduceOp::band:
        result &= other;
        break;
      case ReduceOp::bor:
        result |= other;
        break;
      case ReduceOp::bxor:
        result ^= other;
        break;
    }
  }
  return op_ == ReduceOp::average ? result / ranks_ : result;
}

Pattern::Pattern(DataType dtype, const std::function<int64_t(int64_t)>& value)
    : width_(size_of(dtype)), period_(static_cast<size_t>(ExactData::kPeriod * width_)) {
  for (int64_t i = 0; i < ExactData::kPeriod; ++i)
    encode(dtype, value(i), period_.data() + i * width_);
}

void Pattern::for_each_piece(int64_t count, int64_t phase,
                             const std::function<void(int64_t, int64_t, int64_t)>& piece) const {
  for (int64_t done = 0; done < count;) {
    const int64_t first = (phase + done) % ExactData::kPeriod;
    const int64_t length = std::min(count - done, ExactData::kPeriod - first);
    piece(done, first, length);
    done += length;
  }
}

void Pattern::fill(std::byte* data, int64_t count, int64_t phase) const {
  for_each_piece(count, phase, [&](int64_t offset, int64_t first, int64_t length) {
    std::memcpy(data + offset * width_, period_.data() + first * width_,
                static_cast<size_t>(length * width_));
  });
}

int64_t Pattern::count_wrong(const std::byte* data, int64_t count, int64_t phase) const {
  int64_t wrong = 0;
  const auto differs = [&](int64_t offset, int64_t first, int64_t length) {
    return std::memcmp(data + offset * width_, period_.data() + first * width_,
                       static_cast<size_t>(length * width_)) != 0;
  };
  for_each_piece(count, phase, [&](int64_t offset, int64_t first, int64_t length) {
    if (!differs(offset, first, length)) return;
    for (int64_t i = 0; i < length; ++i) wrong += differs(offset + i, first + i, 1);
  });
  return wrong;
}

}  // namespace tutti::bench
