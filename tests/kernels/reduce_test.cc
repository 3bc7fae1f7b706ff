#include "tutti/kernels/reduce.h"

#include <algorithm>
#include <limits>

#include "tests/kernels/kernel_test.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

constexpr uint64_t kReduceSeed = 20261121;

class ReduceTest : public OnEveryTarget {};
TUTTI_ON_EVERY_TARGET(ReduceTest);

const Scale kScales[] = {{}, {0.3, 1}, {1.0, 7}, {-2.5, 3}, {0.0, 1}};

// Reduces with the kernel and with the reference, from and to memory at odd addresses.
void expect_equal_to_reference(DataType dtype, ReduceOp op, int64_t count, int input_count,
                               Scale scale, std::mt19937_64& random) {
  std::vector<Buffer> inputs;
  std::vector<const std::byte*> pointers;
  for (int j = 0; j < input_count; ++j) {
    inputs.emplace_back(dtype, count, random() % 17);
    fill_randomly(inputs.back(), random);
  }
  for (const auto& input : inputs) pointers.push_back(input.data());
  Buffer expected(dtype, count), got(dtype, count, random() % 17);
  reduce_reference(dtype, op, expected.data(), pointers, count, scale);
  reduce(dtype, op, got.data(), pointers, count, scale);
  const auto where = [&] {
    return testing::Message() << to_string(dtype) << ' ' << to_string(op) << " of " << input_count
                              << " inputs, " << count << " elements, scale " << scale.factor << '/'
                              << scale.divisor;
  };
  ASSERT_EQ(first_difference(dtype, got.data(), expected.data(), count), -1) << where();
  Buffer streamed(dtype, count, random() % 129);
  reduce(dtype, op, streamed.data(), pointers, count, scale, Destination::memory);
  ASSERT_EQ(first_difference(dtype, streamed.data(), expected.data(), count), -1)
      << where() << " past the caches";
  Buffer backwards(dtype, count, random() % 17);
  reduce(dtype, op, backwards.data(), pointers, count, scale, Destination::cache,
         Order::descending);
  ASSERT_EQ(first_difference(dtype, backwards.data(), expected.data(), count), -1)
      << where() << " from the last to the first";
  // Reduces in place, over a random input.
  const size_t in_place = random() % static_cast<uint64_t>(input_count);
  reduce(dtype, op, inputs[in_place].data(), pointers, count, scale);
  ASSERT_EQ(first_difference(dtype, inputs[in_place].data(), expected.data(), count), -1)
      << where() << " over input " << in_place;
  // Reduces into several outputs at the same time: over all inputs, and into separate memory.
  std::vector<std::byte*> outputs = {got.data()};
  for (auto& input : inputs) outputs.push_back(input.data());
  reduce_reference(dtype, op, expected.data(), pointers, count, scale);
  const auto order = random() % 2 == 0 ? Order::ascending : Order::descending;
  reduce(dtype, op, outputs, pointers, count, scale, Destination::cache, order);
  for (const auto* output : outputs)
    ASSERT_EQ(first_difference(dtype, output, expected.data(), count), -1)
        << where() << " into all of them";
}

TEST_P(ReduceTest, EqualsReferenceForAllTypesOpsAndOddLengths) {
  SCOPED_TRACE(testing::Message() << "seed " << kReduceSeed);
  std::mt19937_64 random(kReduceSeed);
  for (const DataType dtype : kAllTypes)
    for (const ReduceOp op : kAllOps) {
      if (!can_reduce(dtype, op)) continue;
      for (const int64_t count : kOddLengths)
        for (int input_count = 1; input_count <= 9; ++input_count) {
          const Scale scale = kScales[random() % std::size(kScales)];
          expect_equal_to_reference(dtype, op, count, input_count, scale, random);
          if (HasFatalFailure()) return;
        }
    }
}

TEST_P(ReduceTest, EveryScaleEqualsReference) {
  SCOPED_TRACE(testing::Message() << "seed " << kReduceSeed);
  std::mt19937_64 random(kReduceSeed);
  for (const DataType dtype : kAllTypes)
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average})
      for (const Scale scale : kScales) {
        if (!can_reduce(dtype, op)) continue;
        expect_equal_to_reference(dtype, op, 20'011, 3, scale, random);
        if (HasFatalFailure()) return;
      }
}

// Results of this size are written around the caches, from their first whole cache line on.
TEST_P(ReduceTest, LargeResultsEqualThoseInTheCache) {
  SCOPED_TRACE(testing::Message() << "seed " << kReduceSeed);
  std::mt19937_64 random(kReduceSeed);
  for (const DataType dtype : {DataType::f32, DataType::bf16}) {
    const int64_t count = (int64_t{32} << 20) / size_of(dtype) + 77;
    const Buffer a(dtype, count, 1), b(dtype, count, 36);
    Buffer period(dtype, 8191);
    for (const auto* input : {&a, &b}) {
      fill_randomly(period, random);
      for (size_t at = 0; at < input->bytes(); at += period.bytes())
        std::memcpy(input->data() + at, period.data(),
                    std::min(period.bytes(), input->bytes() - at));
    }
    const std::byte* inputs[] = {a.data(), b.data()};
    const Buffer cached(dtype, count), large(dtype, count + 64);
    reduce(dtype, ReduceOp::average, cached.data(), inputs, count, {}, Destination::cache);
    for (const size_t shift : {3, 44}) {
      reduce(dtype, ReduceOp::average, large.data() + shift, inputs, count);
      ASSERT_EQ(first_difference(dtype, large.data() + shift, cached.data(), count), -1)
          << to_string(dtype) << " at " << shift;
    }
  }
}

TEST_P(ReduceTest, InPlaceOverEachInput) {
  const std::vector<float> a{1, 2, 3}, b{10, 20, 30}, c{100, 200, 300}, sum{111, 222, 333};
  for (size_t target = 0; target < 3; ++target) {
    std::vector<float> data[] = {a, b, c};
    const std::byte* inputs[] = {reinterpret_cast<std::byte*>(data[0].data()),
                                 reinterpret_cast<std::byte*>(data[1].data()),
                                 reinterpret_cast<std::byte*>(data[2].data())};
    reduce(DataType::f32, ReduceOp::sum, reinterpret_cast<std::byte*>(data[target].data()), inputs,
           3);
    EXPECT_EQ(data[target], sum) << "over input " << target;
  }
}

template <class T>
std::vector<T> reduce_values(ReduceOp op, std::initializer_list<std::vector<T>> inputs,
                             Scale scale = {}) {
  std::vector<const std::byte*> pointers;
  for (const auto& input : inputs)
    pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> output(inputs.begin()->size());
  reduce(dtype_of<T>(), op, reinterpret_cast<std::byte*>(output.data()), pointers,
         static_cast<int64_t>(output.size()), scale);
  return output;
}

TEST_P(ReduceTest, IntegerAveragesAreExactAndTruncateTowardZero) {
  constexpr int64_t kBig = (int64_t{1} << 53) + 1;  // no f64 holds it
  EXPECT_EQ(reduce_values<int64_t>(ReduceOp::average, {{2 * kBig, -7, 7}, {0, 0, 0}}),
            (std::vector<int64_t>{kBig, -3, 3}));
  EXPECT_EQ(reduce_values<int64_t>(ReduceOp::average, {{-2 * kBig, -1}, {0, 0}}),
            (std::vector<int64_t>{-kBig, 0}));
  EXPECT_EQ(reduce_values<uint64_t>(ReduceOp::average, {{~uint64_t{0}}}),
            (std::vector<uint64_t>{~uint64_t{0}}));
  EXPECT_EQ(reduce_values<int8_t>(ReduceOp::average, {{-100, 5}, {-28, 5}, {0, 5}}),
            (std::vector<int8_t>{-42, 5}));
  EXPECT_EQ(reduce_values<int8_t>(ReduceOp::average, {{100, -100}, {100, -100}, {101, -101}}),
            (std::vector<int8_t>{100, -100}));
  EXPECT_EQ(reduce_values<int8_t>(ReduceOp::sum, {{-128, 127}}, {1.0, 128}),
            (std::vector<int8_t>{-1, 0}));
}

// The sum of an average may overflow the type; the average must not.
template <class T>
void expect_averages_of_limits() {
  constexpr T kMost = std::numeric_limits<T>::max(), kLeast = std::numeric_limits<T>::min();
  EXPECT_EQ(reduce_values<T>(ReduceOp::average, {{kMost, kLeast, kMost}, {kMost, kLeast, kLeast}}),
            (std::vector<T>{kMost, kLeast, static_cast<T>(std::is_signed_v<T> ? 0 : kMost / 2)}));
  EXPECT_EQ(reduce_values<T>(ReduceOp::sum, {{kMost}, {kMost}, {kMost}}, {1.0, 3}),
            (std::vector<T>{kMost}));
}

TEST_P(ReduceTest, AveragesOfIntegersNeverWrap) {
  expect_averages_of_limits<int8_t>();
  expect_averages_of_limits<int16_t>();
  expect_averages_of_limits<int32_t>();
  expect_averages_of_limits<int64_t>();
  expect_averages_of_limits<uint8_t>();
  expect_averages_of_limits<uint16_t>();
  expect_averages_of_limits<uint32_t>();
  expect_averages_of_limits<uint64_t>();
}

TEST_P(ReduceTest, IntegersWrapAndTheirScaleSaturates) {
  EXPECT_EQ(reduce_values<uint8_t>(ReduceOp::sum, {{200}, {100}}), (std::vector<uint8_t>{44}));
  EXPECT_EQ(reduce_values<uint8_t>(ReduceOp::product, {{16}, {17}}), (std::vector<uint8_t>{16}));
  EXPECT_EQ(reduce_values<int64_t>(ReduceOp::sum, {{std::numeric_limits<int64_t>::max()}, {1}}),
            (std::vector<int64_t>{std::numeric_limits<int64_t>::min()}));
  EXPECT_EQ(reduce_values<int8_t>(ReduceOp::sum, {{100, -100, 3}}, {1.5, 1}),
            (std::vector<int8_t>{127, -128, 4}));
}

TEST_P(ReduceTest, NanWinsMinAndMaxOnEitherSide) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  // Long enough for vectors and a remainder.
  const std::vector<float> numbers(37, 1.0f), nans(37, kNan);
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    for (const float x : reduce_values<float>(op, {numbers, nans, numbers}))
      EXPECT_TRUE(std::isnan(x));
    for (const float x : reduce_values<float>(op, {nans, numbers})) EXPECT_TRUE(std::isnan(x));
  }
}

TEST_P(ReduceTest, FloatsOverflowToInfinityAndKeepDenormals) {
  const Float16 largest{0x7bff}, half_step{0x4c00};  // 65504 and 16: a tie that rounds up
  EXPECT_EQ(reduce_values<Float16>(ReduceOp::sum, {{largest}, {half_step}}),
            (std::vector<Float16>{{0x7c00}}));
  EXPECT_EQ(reduce_values<Float16>(ReduceOp::sum, {{{0x0001}}, {{0x0002}}}),
            (std::vector<Float16>{{0x0003}}));
  EXPECT_EQ(reduce_values<BFloat16>(ReduceOp::sum, {{{0x7f7f}}, {{0x7f7f}}}),
            (std::vector<BFloat16>{{0x7f80}}));
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(reduce_values<float>(ReduceOp::sum, {{kTiny}, {kTiny}}),
            (std::vector<float>{2 * kTiny}));
}

TEST_P(ReduceTest, SixteenBitSumsRoundOnce) {
  // In bf16, 256 + 1 would be 256, and again 256. In f32 the sum is 258, which bf16 holds.
  EXPECT_EQ(reduce_values<BFloat16>(ReduceOp::sum,
                                    {{to_bfloat16(256)}, {to_bfloat16(1)}, {to_bfloat16(1)}}),
            (std::vector<BFloat16>{to_bfloat16(258)}));
}

TEST_P(ReduceTest, AccumulatesInRankOrder) {
  // (1e8 + 1) - 1e8 is 0 in f32, (1e8 - 1e8) + 1 is 1.
  EXPECT_EQ(reduce_values<float>(ReduceOp::sum, {{1e8f}, {1.0f}, {-1e8f}}),
            (std::vector<float>{0.0f}));
  EXPECT_EQ(reduce_values<float>(ReduceOp::sum, {{1e8f}, {-1e8f}, {1.0f}}),
            (std::vector<float>{1.0f}));
}

TEST(CanReduce, SaysWhatMeansSomething) {
  EXPECT_TRUE(can_reduce(DataType::bf16, ReduceOp::average));
  EXPECT_FALSE(can_reduce(DataType::f32, ReduceOp::band));
  EXPECT_TRUE(can_reduce(DataType::i16, ReduceOp::bor));
  EXPECT_TRUE(can_reduce(DataType::u64, ReduceOp::bxor));
  EXPECT_FALSE(can_reduce(DataType::f16, ReduceOp::bxor));
  EXPECT_FALSE(can_reduce(DataType::boolean, ReduceOp::average));
  for (const ReduceOp op : kAllOps) EXPECT_FALSE(can_reduce(DataType::raw, op));
  for (const ReduceOp op : kAllOps)
    EXPECT_EQ(can_reduce(DataType::boolean, op), op != ReduceOp::average);
}

TEST(Reduce, RefusesOurOwnMistakes) {
  std::byte data[8] = {};
  const std::byte* inputs[] = {data};
  EXPECT_THROW(reduce(DataType::f32, ReduceOp::sum, data, {}, 1), Error);
  EXPECT_THROW(reduce(DataType::f32, ReduceOp::band, data, inputs, 1), Error);
  EXPECT_THROW(reduce(DataType::f32, ReduceOp::sum, data, inputs, 1, {1.0, 0}), Error);
}

}  // namespace
}  // namespace tutti
