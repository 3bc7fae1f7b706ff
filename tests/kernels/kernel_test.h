#pragma once

// highway_targets.h must come first: it sets which instruction sets are compiled.
#include "tutti/kernels/highway_targets.h"
//
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tutti/kernels/element.h"
#include "tutti/kernels/reduce.h"
#include "tutti/kernels/scaling.h"

namespace tutti {

inline constexpr DataType kAllTypes[] = {
    DataType::f64, DataType::f32, DataType::f16,    DataType::bf16, DataType::i8,
    DataType::i16, DataType::i32, DataType::i64,    DataType::u8,   DataType::u16,
    DataType::u32, DataType::u64, DataType::boolean};

inline constexpr ReduceOp kAllOps[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::min,
                                       ReduceOp::max, ReduceOp::product, ReduceOp::band,
                                       ReduceOp::bor, ReduceOp::bxor};

inline constexpr int64_t kOddLengths[] = {0,  1,  2,  3,  7,  15,  16,   17,  31,
                                          32, 33, 63, 64, 65, 127, 1000, 4097};

/// Runs the test on each instruction set that this processor has, not only on its best one.
class OnEveryTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::GetChosenTarget().Update(GetParam()); }
  void TearDown() override { hwy::GetChosenTarget().DeInit(); }
};

inline std::vector<int64_t> processor_targets() {
  std::vector<int64_t> targets;
  for (int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1)
    targets.push_back(rest & -rest);
  return targets;
}

inline std::string target_name(const testing::TestParamInfo<int64_t>& info) {
  return hwy::TargetName(info.param);
}

#define TUTTI_ON_EVERY_TARGET(suite) \
  INSTANTIATE_TEST_SUITE_P(, suite, testing::ValuesIn(processor_targets()), target_name)

/// Memory for `count` elements that starts `shift` bytes after a 64-byte boundary. It ends where
/// the allocation ends, so that a sanitizer sees every access beyond it.
class Buffer {
 public:
  Buffer(DataType dtype, int64_t count, size_t shift = 0)
      : dtype_(dtype),
        bytes_(static_cast<size_t>(count * size_of(dtype))),
        shift_(shift),
        memory_(new std::byte[shift + bytes_]()) {}
  std::byte* data() const { return memory_.get() + shift_; }
  size_t bytes() const { return bytes_; }
  DataType dtype() const { return dtype_; }

 private:
  DataType dtype_;
  size_t bytes_, shift_;
  std::unique_ptr<std::byte[]> memory_;
};

/// A random element. For floats it is often a small number, and sometimes arbitrary bits
/// (infinities, NaNs, denormals). For bools it is 0 or 1.
template <class T, class Random>
T random_element(Random& random) {
  const uint64_t bits = random();
  if constexpr (std::is_same_v<T, Boolean>) {
    return {static_cast<uint8_t>(bits & 1)};
  } else if constexpr (kIsFloat<T>) {
    if (bits % 4 != 0)
      return convert_number<T>(static_cast<double>(static_cast<int64_t>(random()) >> 40) * 0x1p-18);
  } else if (bits % 2 != 0) {
    return static_cast<T>(random() % 16);
  }
  const uint64_t any = random();
  T value;
  std::memcpy(&value, &any, sizeof(T));
  return value;
}

template <class Random>
void fill_randomly(Buffer& buffer, Random& random) {
  visit_dtype(buffer.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto count = static_cast<int64_t>(buffer.bytes() / sizeof(T));
    for (int64_t i = 0; i < count; ++i) store_element(buffer.data(), i, random_element<T>(random));
  });
}

template <class T>
bool is_nan(T value) {
  if constexpr (kIsFloat<T>)
    return std::isnan(convert_number<double>(value));
  else
    return false;
}

/// Returns the index of the first element whose bits differ, or -1. Two NaNs are equal whatever
/// their bits.
inline int64_t first_difference(DataType dtype, const std::byte* a, const std::byte* b,
                                int64_t count) {
  return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) -> int64_t {
    for (int64_t i = 0; i < count; ++i) {
      const T x = load_element<T>(a, i), y = load_element<T>(b, i);
      if (std::memcmp(&x, &y, sizeof(T)) != 0 && !(is_nan(x) && is_nan(y))) return i;
    }
    return -1;
  });
}

}  // namespace tutti
