// The arithmetic of the CUDA kernels, run by the host: the work of a block is a function that
// compiles for both. On a GPU tests/tensor/cuda_device_test.cc runs the kernels themselves.

#include "tests/kernels/kernel_test.h"
#include "tutti/kernels/cuda/pack/pack_tile.h"

namespace tutti {
namespace {

constexpr uint64_t kSeed = 20261121;
constexpr Scale kScales[] = {{}, {0.37, 3}, {-1.5, 1}, {1.0, 5}, {1e30, 1}};

// Runs the tiles as the kernel does, with few threads per block.
void run(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale, bool unpacks) {
  constexpr int kThreads = 7;
  cuda::for_each_table(bucket, pieces, scale, unpacks, [](const auto& table, int32_t tiles) {
    for (int32_t tile = 0; tile < tiles; ++tile)
      for (int thread = 0; thread < kThreads; ++thread)
        cuda::run_tile(cuda::find_tile(table, tile), thread, kThreads);
  });
}

TEST(CudaPack, EveryPairEqualsReference) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (const DataType from : kAllTypes)
    for (const DataType to : kAllTypes)
      for (const int64_t count : kOddLengths)
        for (const Scale scale : kScales)
          for (const bool aligned : {true, false}) {
            // Aligned to elements, or not at all.
            const auto shift = [&](DataType dtype) {
              return aligned ? random() % 17 * static_cast<size_t>(size_of(dtype)) : random() % 17;
            };
            Buffer input(from, count, shift(from)), expected(to, count), got(to, count, shift(to));
            fill_randomly(input, random);
            cast_reference(from, input.data(), to, expected.data(), count, scale);
            const Piece piece{input.data(), from, 0, count};
            run({got.data(), to, count}, {&piece, 1}, scale, false);
            ASSERT_EQ(first_difference(to, got.data(), expected.data(), count), -1)
                << "pack " << to_string(from) << " to " << to_string(to) << ", " << count
                << " elements, scale " << scale.factor << '/' << scale.divisor;
            Buffer back(to, count, shift(to));
            const Piece target{back.data(), to, 0, count};
            run({input.data(), from, count}, {&target, 1}, scale, true);
            ASSERT_EQ(first_difference(to, back.data(), expected.data(), count), -1)
                << "unpack " << to_string(from) << " to " << to_string(to) << ", " << count;
          }
}

// All values of the 16-bit floats, and wider numbers that are rounded to them.
TEST(CudaPack, EverySixteenBitsEqualReference) {
  std::mt19937_64 random(kSeed);
  for (const DataType narrow : {DataType::f16, DataType::bf16}) {
    Buffer all(narrow, 65536), wide(DataType::f32, 65536), expected(DataType::f32, 65536);
    for (int i = 0; i < 65536; ++i) store_element(all.data(), i, static_cast<uint16_t>(i));
    const Piece piece{all.data(), narrow, 0, 65536};
    run({wide.data(), DataType::f32, 65536}, {&piece, 1}, {}, false);
    cast_reference(narrow, all.data(), DataType::f32, expected.data(), 65536);
    EXPECT_EQ(std::memcmp(wide.data(), expected.data(), wide.bytes()), 0);
    // Uses all bits of integers, including values next to ties of the 16-bit types.
    for (const DataType from : {DataType::i64, DataType::u64, DataType::f64}) {
      constexpr int64_t kCount = 20000;
      Buffer input(from, kCount), got(narrow, kCount), right(narrow, kCount);
      for (int64_t i = 0; i < kCount; ++i) {
        const uint64_t tie = (random() & 0xfff0'0000'0000'0000) >> random() % 50;
        const uint64_t value = tie + random() % 3 - 1;
        if (from == DataType::f64)
          store_element(input.data(), i,
                        static_cast<double>(tie) * (1 + (random() % 3 - 1.0) / 4e15));
        else
          store_element(input.data(), i, value);
      }
      const Piece number{input.data(), from, 0, kCount};
      run({got.data(), narrow, kCount}, {&number, 1}, {}, false);
      cast_reference(from, input.data(), narrow, right.data(), kCount);
      EXPECT_EQ(first_difference(narrow, got.data(), right.data(), kCount), -1)
          << to_string(from) << " to " << to_string(narrow);
    }
  }
}

// More pieces than one launch of the small and of the large table takes, with gaps and with lengths
// close to a tile's.
class CudaPackPieces : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Launches, CudaPackPieces,
                         testing::Values(cuda::SmallPackTable::kMostStretches,
                                         cuda::SmallPackTable::kMostStretches + 1,
                                         3 * cuda::LargePackTable::kMostStretches));

TEST_P(CudaPackPieces, WithGaps) {
  std::mt19937_64 random(kSeed);
  std::vector<Buffer> tensors;
  std::vector<Piece> pieces;
  int64_t end = 0;
  for (int i = 0; i < GetParam(); ++i) {
    const auto dtype = kAllTypes[random() % 4];
    const int64_t count = random() % 8 == 0
                              ? cuda::kTileElements + static_cast<int64_t>(random() % 3) - 1
                              : static_cast<int64_t>(random() % 100);
    tensors.emplace_back(dtype, count, random() % 3);
    fill_randomly(tensors.back(), random);
    end += static_cast<int64_t>(random() % 3);
    pieces.push_back({tensors.back().data(), dtype, end, count});
    end += count;
  }
  end += 5;
  Buffer got(DataType::bf16, end), expected(DataType::bf16, end);
  std::memset(got.data(), 0xa5, got.bytes());
  run({got.data(), DataType::bf16, end}, pieces, {2.0, 3}, false);
  pack(pieces, DataType::bf16, expected.data(), 0, end, {2.0, 3});
  EXPECT_EQ(first_difference(DataType::bf16, got.data(), expected.data(), end), -1);

  run({expected.data(), DataType::bf16, end}, pieces, {1.5, 1}, true);
  for (size_t i = 0; i < pieces.size(); ++i) {
    Buffer right(pieces[i].dtype, pieces[i].count);
    const Piece target{right.data(), pieces[i].dtype, 0, pieces[i].count};
    unpack({&target, 1}, DataType::bf16, expected.data() + pieces[i].offset * 2, 0, pieces[i].count,
           {1.5, 1});
    ASSERT_EQ(first_difference(pieces[i].dtype, pieces[i].data, right.data(), pieces[i].count), -1)
        << "piece " << i;
  }
}

TEST(CudaPack, LanesSayYesOrNoInEveryType) {
  for (const DataType dtype : kAllTypes)
    for (const bool one : {false, true}) {
      Buffer lane(dtype, 1, 3);
      cuda::store_lane(dtype, lane.data(), one);
      EXPECT_EQ(cuda::lane_is(dtype, lane.data(), 1), one) << to_string(dtype);
      EXPECT_EQ(cuda::lane_is(dtype, lane.data(), 0), !one) << to_string(dtype);
    }
  for (const float other : {2.0f, -1.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    const auto* lane = reinterpret_cast<const std::byte*>(&other);
    EXPECT_FALSE(cuda::lane_is(DataType::f32, lane, 0) || cuda::lane_is(DataType::f32, lane, 1));
  }
}

}  // namespace
}  // namespace tutti
