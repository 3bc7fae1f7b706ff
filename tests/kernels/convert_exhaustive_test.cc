// Converts all 2^32 patterns of f32 to both 16-bit formats and compares with rounding by
// definition.
#include "tests/kernels/kernel_test.h"
#include "tests/kernels/rounding.h"
#include "tutti/kernels/convert.h"

namespace tutti {
namespace {

class ConvertExhaustive : public OnEveryTarget {};
TUTTI_ON_EVERY_TARGET(ConvertExhaustive);

template <class T>
void expect_every_float_rounds() {
  constexpr int64_t kBlock = 1 << 15;
  constexpr uint32_t kInfinity = 0x7f800000;
  std::vector<uint32_t> input(2 * kBlock);
  std::vector<uint16_t> output(2 * kBlock);
  AscendingRounder<T> rounder;
  for (uint64_t first = 0; first < 0x80000000u; first += kBlock) {
    for (uint32_t i = 0; i < kBlock; ++i) {
      input[i] = static_cast<uint32_t>(first) + i;
      input[kBlock + i] = input[i] | 0x80000000u;
    }
    cast(DataType::f32, reinterpret_cast<std::byte*>(input.data()), dtype_of<T>(),
         reinterpret_cast<std::byte*>(output.data()), 2 * kBlock);
    for (uint32_t i = 0; i < kBlock; ++i) {
      const int positive = output[i], negative = output[kBlock + i];
      ASSERT_EQ(negative, positive | 0x8000) << std::hex << input[i];
      if (input[i] > kInfinity)
        ASSERT_GT(positive, kInfinityBits<T>) << std::hex << input[i];
      else
        ASSERT_EQ(positive, rounder.round(std::bit_cast<float>(input[i]))) << std::hex << input[i];
    }
  }
}

TEST_P(ConvertExhaustive, Float16) { expect_every_float_rounds<Float16>(); }
TEST_P(ConvertExhaustive, BFloat16) { expect_every_float_rounds<BFloat16>(); }

}  // namespace
}  // namespace tutti
