#include <algorithm>

#include "tests/kernels/kernel_test.h"
#include "tutti/kernels/convert.h"

namespace tutti {
namespace {

constexpr uint64_t kPackSeed = 20261123;

// Tensors of mixed types at ascending offsets of a bucket, sometimes with a gap before them.
struct Layout {
  std::vector<Buffer> tensors;
  std::vector<Piece> pieces;
  int64_t count = 0;  // elements of the bucket

  Layout(std::mt19937_64& random, int tensor_count) {
    const DataType types[] = {DataType::f32, DataType::f16, DataType::bf16, DataType::f64};
    for (int i = 0; i < tensor_count; ++i) {
      if (random() % 3 == 0) count += static_cast<int64_t>(random() % 20);
      const auto elements = static_cast<int64_t>(random() % 4 == 0 ? 0 : random() % 300);
      tensors.emplace_back(types[random() % 4], elements, random() % 9);
      fill_randomly(tensors.back(), random);
      pieces.push_back({tensors.back().data(), tensors.back().dtype(), count, elements});
      count += elements;
    }
    count += 5;
  }
};

// Cuts [0, count) at random and calls f for each part, in random order.
template <class Function>
void for_random_ranges(int64_t count, std::mt19937_64& random, Function&& f) {
  std::vector<int64_t> cuts{0, count};
  for (int i = 0; i < 6; ++i)
    cuts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(count + 1)));
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) ranges.emplace_back(cuts[i], cuts[i + 1]);
  std::shuffle(ranges.begin(), ranges.end(), random);
  for (const auto& [begin, end] : ranges) f(begin, end);
}

std::byte* at(const Buffer& bucket, int64_t i) {
  return bucket.data() + i * size_of(bucket.dtype());
}

TEST(Pack, AnyCutOfTheBucketEqualsCastingEachTensor) {
  SCOPED_TRACE(testing::Message() << "seed " << kPackSeed);
  std::mt19937_64 random(kPackSeed);
  for (int round = 0; round < 200; ++round) {
    const Layout layout(random, static_cast<int>(random() % 12));
    const DataType dtype = kAllTypes[random() % 4];
    const Scale scale{random() % 2 ? 1.0 : 0.3, random() % 2 ? 1 : 3};
    Buffer expected(dtype, layout.count), got(dtype, layout.count);
    for (const auto& piece : layout.pieces)
      cast_reference(piece.dtype, piece.data, dtype, at(expected, piece.offset), piece.count,
                     scale);
    fill_randomly(got, random);
    for_random_ranges(layout.count, random, [&](int64_t begin, int64_t end) {
      pack(layout.pieces, dtype, at(got, begin), begin, end, scale);
    });
    ASSERT_EQ(first_difference(dtype, got.data(), expected.data(), layout.count), -1)
        << "round " << round;
  }
}

TEST(Pack, TouchesNothingOutsideTheRange) {
  std::vector<float> tensor{1, 2, 3, 4}, bucket(8, -1.0f);
  const Piece pieces[] = {{reinterpret_cast<std::byte*>(tensor.data()), DataType::f32, 2, 4}};
  pack(pieces, DataType::f32, reinterpret_cast<std::byte*>(&bucket[1]), 1, 4);
  EXPECT_EQ(bucket, (std::vector<float>{-1, 0, 1, 2, -1, -1, -1, -1}));
  pack(pieces, DataType::f32, reinterpret_cast<std::byte*>(&bucket[5]), 5, 7);
  EXPECT_EQ(bucket, (std::vector<float>{-1, 0, 1, 2, -1, 4, 0, -1}));
}

TEST(Unpack, AnyCutOfTheBucketEqualsCastingEachTensor) {
  SCOPED_TRACE(testing::Message() << "seed " << kPackSeed);
  std::mt19937_64 random(kPackSeed);
  for (int round = 0; round < 200; ++round) {
    const Layout layout(random, static_cast<int>(random() % 12));
    const DataType dtype = kAllTypes[random() % 4];
    const Scale scale{0.5, 3};
    Buffer bucket(dtype, layout.count);
    fill_randomly(bucket, random);
    for_random_ranges(layout.count, random, [&](int64_t begin, int64_t end) {
      unpack(layout.pieces, dtype, at(bucket, begin), begin, end, scale);
    });
    for (const auto& piece : layout.pieces) {
      Buffer expected(piece.dtype, piece.count);
      cast_reference(dtype, at(bucket, piece.offset), piece.dtype, expected.data(), piece.count,
                     scale);
      ASSERT_EQ(first_difference(piece.dtype, piece.data, expected.data(), piece.count), -1)
          << "round " << round;
    }
  }
}

TEST(Unpack, TouchesNothingOutsideTheRange) {
  std::vector<float> tensor{-1, -1, -1, -1}, bucket{9, 9, 1, 2, 3, 4, 9, 9};
  const Piece pieces[] = {{reinterpret_cast<std::byte*>(tensor.data()), DataType::f32, 2, 4}};
  unpack(pieces, DataType::f32, reinterpret_cast<std::byte*>(bucket.data()), 0, 3);
  EXPECT_EQ(tensor, (std::vector<float>{1, -1, -1, -1}));
  unpack(pieces, DataType::f32, reinterpret_cast<std::byte*>(&bucket[5]), 5, 8);
  EXPECT_EQ(tensor, (std::vector<float>{1, -1, -1, 4}));
}

}  // namespace
}  // namespace tutti
