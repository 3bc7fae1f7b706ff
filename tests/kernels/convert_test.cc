#include "tutti/kernels/convert.h"

#include <limits>

#include "tests/kernels/kernel_test.h"
#include "tests/kernels/rounding.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

constexpr uint64_t kConvertSeed = 20261122;

class ConvertTest : public OnEveryTarget {};
TUTTI_ON_EVERY_TARGET(ConvertTest);

template <class To, class From>
std::vector<To> cast_values(const std::vector<From>& input, Scale scale = {}) {
  std::vector<To> output(input.size());
  cast(dtype_of<From>(), reinterpret_cast<const std::byte*>(input.data()), dtype_of<To>(),
       reinterpret_cast<std::byte*>(output.data()), static_cast<int64_t>(input.size()), scale);
  return output;
}

// Converts all 65536 patterns to f32, with the vector loop and with the scalar function.
template <class T>
void expect_widening_by_definition() {
  std::vector<T> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i);
  const auto wide = cast_values<float>(all);
  const auto back = cast_values<T>(wide);
  for (size_t i = 0; i < all.size(); ++i) {
    const int magnitude = i & 0x7fff;
    if (magnitude > kInfinityBits<T>) {
      ASSERT_TRUE(std::isnan(wide[i]) && std::isnan(to_float(all[i]))) << i;
      // A NaN stays a quiet one: the first mantissa bit is set.
      ASSERT_TRUE(std::bit_cast<uint32_t>(wide[i]) & 0x00400000) << i;
      ASSERT_GT(back[i].bits & 0x7fff, kInfinityBits<T>) << i;
      continue;
    }
    double value = magnitude == kInfinityBits<T> ? std::numeric_limits<double>::infinity()
                                                 : magnitude_value<T>(magnitude);
    if (i & 0x8000) value = -value;
    ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(float(value))) << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(to_float(all[i])), std::bit_cast<uint32_t>(wide[i])) << i;
    ASSERT_EQ(back[i], all[i]) << i;
  }
}

TEST_P(ConvertTest, EveryFloat16BecomesItsValueAndComesBack) {
  expect_widening_by_definition<Float16>();
}
TEST_P(ConvertTest, EveryBFloat16BecomesItsValueAndComesBack) {
  expect_widening_by_definition<BFloat16>();
}

// Uses f32 values at, just before and just after each point where rounding changes.
template <class T>
void expect_rounding_at_every_boundary() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> input;
  std::vector<T> expected;
  const auto add = [&](float value, int bits) {
    input.insert(input.end(), {value, -value});
    expected.push_back({static_cast<uint16_t>(bits)});
    expected.push_back({static_cast<uint16_t>(bits | 0x8000)});
  };
  for (int bits = 0; bits < kInfinityBits<T>; ++bits) {
    const float middle = midpoint_after<T>(bits);
    add(std::nextafter(middle, 0.0f), bits);
    add(middle, bits + bits % 2);
    add(std::nextafter(middle, kInfinity), bits + 1);
  }
  add(kInfinity, kInfinityBits<T>);
  add(std::numeric_limits<float>::max(), kInfinityBits<T>);
  add(std::numeric_limits<float>::denorm_min(), 0);
  const auto output = cast_values<T>(input);
  for (size_t i = 0; i < input.size(); ++i) {
    ASSERT_EQ(output[i].bits, expected[i].bits) << std::hexfloat << input[i];
    if constexpr (std::is_same_v<T, Float16>)
      ASSERT_EQ(to_float16(input[i]).bits, expected[i].bits) << std::hexfloat << input[i];
    else
      ASSERT_EQ(to_bfloat16(input[i]).bits, expected[i].bits) << std::hexfloat << input[i];
  }
}

TEST_P(ConvertTest, RoundsToFloat16AtEveryBoundary) {
  expect_rounding_at_every_boundary<Float16>();
}
TEST_P(ConvertTest, RoundsToBFloat16AtEveryBoundary) {
  expect_rounding_at_every_boundary<BFloat16>();
}

TEST_P(ConvertTest, EveryPairEqualsReferenceOnOddLengths) {
  SCOPED_TRACE(testing::Message() << "seed " << kConvertSeed);
  std::mt19937_64 random(kConvertSeed);
  for (const DataType from : kAllTypes)
    for (const DataType to : kAllTypes)
      for (const int64_t count : kOddLengths)
        for (const Scale scale : {Scale{}, Scale{0.37, 3}, Scale{-1.5, 1}, Scale{1.0, 5}}) {
          Buffer input(from, count, random() % 17), expected(to, count);
          Buffer got(to, count, random() % 17);
          fill_randomly(input, random);
          cast_reference(from, input.data(), to, expected.data(), count, scale);
          cast(from, input.data(), to, got.data(), count, scale);
          ASSERT_EQ(first_difference(to, got.data(), expected.data(), count), -1)
              << to_string(from) << " to " << to_string(to) << ", " << count << " elements, scale "
              << scale.factor << '/' << scale.divisor;
          if (size_of(from) != size_of(to)) continue;
          cast(from, input.data(), to, input.data(), count, scale);
          ASSERT_EQ(first_difference(to, input.data(), expected.data(), count), -1)
              << to_string(from) << " to " << to_string(to) << " in place, " << count;
        }
}

TEST_P(ConvertTest, ScaleEqualsReference) {
  std::mt19937_64 random(kConvertSeed);
  for (const DataType dtype : kAllTypes)
    for (const int64_t count : kOddLengths) {
      Buffer got(dtype, count, 3), expected(dtype, count);
      fill_randomly(got, random);
      if (count > 0) std::memcpy(expected.data(), got.data(), got.bytes());
      scale(dtype, got.data(), count, {0.7, 3});
      scale_reference(dtype, expected.data(), count, {0.7, 3});
      ASSERT_EQ(first_difference(dtype, got.data(), expected.data(), count), -1)
          << to_string(dtype) << ' ' << count;
    }
}

TEST_P(ConvertTest, WideNumbersAreRoundedOnceTo16Bits) {
  // Just above a tie of bf16 (1 + 2^-8). A conversion by way of f32 would give the tie, which
  // rounds down.
  const double above_tie = 1 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ(cast_values<BFloat16>(std::vector{above_tie, -above_tie, 1 + 0x1p-8}),
            (std::vector<BFloat16>{{0x3f81}, {0xbf81}, {0x3f80}}));
  const double above_half_tie = 1 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(cast_values<Float16>(std::vector{above_half_tie, 1 + 0x1p-11}),
            (std::vector<Float16>{{0x3c01}, {0x3c00}}));
  const int64_t integer_above_tie = (int64_t{257} << 40) + 1;
  EXPECT_EQ(cast_values<BFloat16>(std::vector{integer_above_tie, -integer_above_tie}),
            (std::vector<BFloat16>{{0x5781}, {0xd781}}));
  EXPECT_EQ(cast_values<BFloat16>(std::vector{1e300, -1e300, 1e-300, -1e-300}),
            (std::vector<BFloat16>{{0x7f80}, {0xff80}, {0x0000}, {0x8000}}));
}

TEST_P(ConvertTest, FloatToIntegerTruncatesAndSaturates) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cast_values<int8_t>(
                std::vector{1.9f, -1.9f, 127.9f, 128.0f, -128.9f, -200.0f, kNan, kInfinity}),
            (std::vector<int8_t>{1, -1, 127, 127, -128, -128, 0, 127}));
  EXPECT_EQ(cast_values<uint8_t>(std::vector{-0.9f, -5.0f, 255.9f, 256.0f}),
            (std::vector<uint8_t>{0, 0, 255, 255}));
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(cast_values<int64_t>(std::vector{0x1p63, -0x1p63, -0x1p64, 0x1p62}),
            (std::vector<int64_t>{kMost, -kMost - 1, -kMost - 1, int64_t{1} << 62}));
}

TEST_P(ConvertTest, IntegersSaturateAndScaleInF64) {
  EXPECT_EQ(cast_values<int8_t>(std::vector<int32_t>{300, -300, 5}),
            (std::vector<int8_t>{127, -128, 5}));
  EXPECT_EQ(cast_values<uint64_t>(std::vector<int64_t>{-1, 7}), (std::vector<uint64_t>{0, 7}));
  EXPECT_EQ(cast_values<int32_t>(std::vector<int8_t>{100}, {3.0, 1}), (std::vector<int32_t>{300}));
  EXPECT_EQ(cast_values<float>(std::vector<int32_t>{3}, {0.5, 1}), (std::vector<float>{1.5f}));
  EXPECT_EQ(cast_values<int32_t>(std::vector<float>{3}, {0.5, 1}), (std::vector<int32_t>{1}));
}

TEST_P(ConvertTest, BoolIsZeroOrOne) {
  std::byte input[] = {std::byte{0}, std::byte{1}, std::byte{7}};
  float as_float[3] = {};
  cast(DataType::boolean, input, DataType::f32, reinterpret_cast<std::byte*>(as_float), 3, {9, 1});
  EXPECT_EQ(as_float[0], 0.0f);
  EXPECT_EQ(as_float[1], 1.0f);
  EXPECT_EQ(as_float[2], 1.0f);
  const std::vector<double> numbers{0.0, -0.0, 0.25, -3};
  std::byte bools[4];
  cast(DataType::f64, reinterpret_cast<const std::byte*>(numbers.data()), DataType::boolean, bools,
       4);
  EXPECT_EQ(std::to_integer<int>(bools[0]), 0);
  EXPECT_EQ(std::to_integer<int>(bools[1]), 0);
  EXPECT_EQ(std::to_integer<int>(bools[2]), 1);
  EXPECT_EQ(std::to_integer<int>(bools[3]), 1);
}

TEST(Convert, RefusesADivisorOfZero) {
  std::byte data[4] = {};
  EXPECT_THROW(scale(DataType::f32, data, 1, {1.0, 0}), Error);
}

}  // namespace
}  // namespace tutti
