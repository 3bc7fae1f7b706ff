#include "tools/bench/workload/exact_data.h"

#include <gtest/gtest.h>

#include <set>

#include "tutti/kernels/reduce.h"

namespace tutti::bench {
namespace {

// Reduces the ranks' inputs with the library's own kernel. Returns the number of elements that
// differ from the benchmark's expectation.
int64_t wrong_after_reduce(DataType dtype, ReduceOp op, int ranks) {
  constexpr int64_t kCount = 2 * ExactData::kPeriod + 5;
  const ExactData data(dtype, op, ranks);
  std::vector<Tensor> inputs;
  std::vector<const std::byte*> pointers;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.emplace_back(Shape{kCount}, dtype);
    Pattern(dtype, [&](int64_t i) {
      return data.input(rank, i);
    }).fill(inputs.back().data(), kCount, 3);
    pointers.push_back(inputs.back().data());
  }
  const Tensor output(Shape{kCount}, dtype);
  reduce(dtype, op, output.data(), pointers, kCount);
  return Pattern(dtype, [&](int64_t i) { return data.reduced(i); })
      .count_wrong(output.data(), kCount, 3);
}

TEST(ExactData, IsExactForEveryDtypeOpAndNumberOfRanks) {
  for (int dtype = 0; dtype < kDataTypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      const auto d = static_cast<DataType>(dtype);
      const auto o = static_cast<ReduceOp>(op);
      if (!can_reduce(d, o)) continue;
      for (const int ranks : {1, 2, 3, 4, 16, 60})
        EXPECT_EQ(wrong_after_reduce(d, o, ranks), 0)
            << to_string(d) << " " << to_string(o) << " over " << ranks;
    }
  }
}

TEST(ExactData, RanksDiffer) {
  for (const auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::product}) {
    const ExactData data(DataType::f32, op, 4);
    std::set<std::vector<int64_t>> inputs;
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<int64_t> input;
      for (int64_t i = 0; i < 100; ++i) input.push_back(data.input(rank, i));
      inputs.insert(input);
    }
    EXPECT_EQ(inputs.size(), 4u) << to_string(op);
  }
}

TEST(ExactData, OneChangedElementIsCounted) {
  const ExactData data(DataType::f32, ReduceOp::sum, 2);
  const Pattern pattern(DataType::f32, [&](int64_t i) { return data.reduced(i); });
  constexpr int64_t kCount = 20'000;
  std::vector<float> values(kCount);
  auto* bytes = reinterpret_cast<std::byte*>(values.data());
  pattern.fill(bytes, kCount, 8190);
  EXPECT_EQ(pattern.count_wrong(bytes, kCount, 8190), 0);
  values[12'345] += 1;
  EXPECT_EQ(pattern.count_wrong(bytes, kCount, 8190), 1);
  values[0] = values[kCount - 1] = -1;
  EXPECT_EQ(pattern.count_wrong(bytes, kCount, 8190), 3);
}

TEST(ExactData, MisplacedAndLeftOutDataAreFound) {
  const ExactData data(DataType::f32, ReduceOp::sum, 2);
  const Pattern pattern(DataType::f32, [&](int64_t i) { return data.reduced(i); });
  constexpr int64_t kCount = 1 << 16;
  std::vector<float> values(kCount);
  auto* bytes = reinterpret_cast<std::byte*>(values.data());
  for (const int64_t shift : {1, 16, 1024, 16'384}) {
    pattern.fill(bytes, kCount, shift);
    EXPECT_GT(pattern.count_wrong(bytes, kCount), kCount / 2) << shift;
  }
  // Fills in one rank's input instead of the sum.
  Pattern(DataType::f32, [&](int64_t i) { return data.input(0, i); }).fill(bytes, kCount);
  EXPECT_EQ(pattern.count_wrong(bytes, kCount), kCount);
}

}  // namespace
}  // namespace tutti::bench
