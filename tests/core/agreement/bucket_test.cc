#include "tutti/core/agreement/bucket.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace tutti {
namespace {

Signature signature(int64_t count, DataType wire = DataType::f32) {
  Signature signature;
  signature.dtype = signature.wire = wire;
  signature.shape = Shape{count};
  return signature;
}

std::vector<Placeable> places(const std::vector<Signature>& signatures) {
  std::vector<Placeable> list;
  for (size_t i = 0; i < signatures.size(); ++i)
    list.push_back({static_cast<int64_t>(i), &signatures[i], {}});
  return list;
}

TEST(PlanBuckets, FusesUpToTheThreshold) {
  const std::vector<Signature> tensors(5, signature(100));
  const auto buckets = plan_buckets(places(tensors), 1000, 1 << 20);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].slices.size(), 2u);
  EXPECT_EQ(buckets[0].count, 200);
  EXPECT_EQ(buckets[0].slices[1].offset, 100);
  EXPECT_EQ(buckets[2].slices.size(), 1u);
}

TEST(PlanBuckets, LooksAheadOverMixedTypes) {
  std::vector<Signature> tensors;
  for (int i = 0; i < 6; ++i)
    tensors.push_back(signature(10, i % 2 ? DataType::bf16 : DataType::f32));
  const auto buckets = plan_buckets(places(tensors), 1 << 20, 1 << 20);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].slices.size(), 3u);
  EXPECT_EQ(buckets[1].slices.size(), 3u);
}

TEST(PlanBuckets, CutsHugeTensorsIntoPieces) {
  const std::vector<Signature> tensors{signature(10), signature(2500), signature(10)};
  const auto buckets = plan_buckets(places(tensors), 1 << 20, 4000);
  // The tensor before the huge one does not wait for the huge one's pieces. The pieces do not wait
  // for the tensor behind them.
  ASSERT_EQ(buckets.size(), 5u);
  EXPECT_EQ(buckets[0].slices, (std::vector<BucketSlice>{{0, 0, 10, 0}}));
  EXPECT_EQ(buckets[1].slices, (std::vector<BucketSlice>{{1, 0, 1000, 0}}));
  EXPECT_EQ(buckets[3].slices, (std::vector<BucketSlice>{{1, 2000, 500, 0}}));
  EXPECT_EQ(buckets[4].slices, (std::vector<BucketSlice>{{2, 0, 10, 0}}));
}

TEST(PlanBuckets, PiecesOvertakeNothingOfOtherTypesEither) {
  const std::vector<Signature> tensors{signature(10), signature(10, DataType::bf16),
                                       signature(2000), signature(10)};
  const auto buckets = plan_buckets(places(tensors), 1 << 20, 4000);
  ASSERT_EQ(buckets.size(), 5u);
  EXPECT_EQ(buckets[0].slices[0].index, 0);
  EXPECT_EQ(buckets[1].slices[0].index, 1);
  EXPECT_EQ(buckets[2].slices[0].index, 2);
  EXPECT_EQ(buckets[4].slices[0].index, 3);
}

TEST(PlanBuckets, FullBucketsOvertakeNothingMoreUrgent) {
  // An urgent f32 tensor, then more bf16 tensors than one bucket holds.
  std::vector<Signature> tensors{signature(10)};
  for (int i = 0; i < 6; ++i) tensors.push_back(signature(100, DataType::bf16));
  tensors[0].priority = 1;
  auto buckets = plan_buckets(places(tensors), 500, 1 << 20);
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].slices[0].index, 0);
  // If no tensor is more urgent than the others, the f32 bucket may wait and fill up.
  tensors[0].priority = 0;
  buckets = plan_buckets(places(tensors), 500, 1 << 20);
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].slices[0].index, 1);
}

TEST(PlanBuckets, AtTheEndTheMostUrgentGoFirst) {
  std::vector<Signature> tensors{signature(10), signature(10, DataType::bf16), signature(10)};
  tensors[0].priority = 2;
  tensors[1].priority = 1;
  const auto buckets = plan_buckets(places(tensors), 1 << 20, 1 << 20);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].slices.size(), 2u);
  EXPECT_EQ(buckets[0].slices[0].index, 0);
}

TEST(PlanBuckets, ABucketIsAsUrgentAsItsMostUrgentTensor) {
  std::vector<Signature> tensors{signature(10), signature(10, DataType::bf16), signature(10)};
  tensors[1].priority = 1;
  tensors[2].priority = 2;
  const auto buckets = plan_buckets(places(tensors), 1 << 20, 1 << 20);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].slices.size(), 2u);
  EXPECT_EQ(buckets[1].slices[0].index, 1);
}

// The last piece of an exact multiple is a whole one, and no piece is empty.
TEST(PlanBuckets, AnExactMultipleOfThePartitionSizeIsCutIntoWholePieces) {
  for (const int64_t pieces : {1, 2, 3}) {
    const std::vector<Signature> tensors{signature(1000 * pieces)};
    const auto buckets = plan_buckets(places(tensors), 1 << 20, 4000);
    ASSERT_EQ(buckets.size(), static_cast<size_t>(pieces));
    for (int64_t i = 0; i < pieces; ++i)
      EXPECT_EQ(buckets[static_cast<size_t>(i)].slices,
                (std::vector<BucketSlice>{{0, 1000 * i, 1000, 0}}));
  }
}

TEST(PlanBuckets, WithoutAPartitionSizeNothingIsCutAndSmallOnesAreFused) {
  const std::vector<Signature> tensors{signature(10), signature(5'000'000), signature(10),
                                       signature(10)};
  const auto buckets = plan_buckets(places(tensors), 4000, 0);
  size_t slices = 0;
  std::map<int64_t, size_t> bucket_of;
  for (size_t i = 0; i < buckets.size(); ++i)
    for (const auto& slice : buckets[i].slices) {
      EXPECT_EQ(slice.begin, 0);
      EXPECT_EQ(slice.count, tensors[static_cast<size_t>(slice.index)].shape.count());
      bucket_of[slice.index] = i;
      ++slices;
    }
  EXPECT_EQ(slices, tensors.size());
  EXPECT_EQ(bucket_of[2], bucket_of[3]);
  EXPECT_NE(bucket_of[1], bucket_of[2]);
}

TEST(PlanBuckets, CutStartsANewBucket) {
  const std::vector<Signature> tensors(4, signature(10));
  const int64_t cuts[] = {2};
  const auto buckets = plan_buckets(places(tensors), 1 << 20, 1 << 20, cuts);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[1].slices[0].index, 2);
}

TEST(PlanBuckets, BeginSkipsWhatIsDone) {
  auto rest = signature(100);
  rest.begin = 60;
  const std::vector<Signature> tensors{rest};
  const auto buckets = plan_buckets(places(tensors), 1 << 20, 1 << 20);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].slices[0], (BucketSlice{0, 60, 40, 0}));
}

// Every element of every tensor lies in exactly one place, in random sets of tensors.
TEST(PlanBuckets, CoversEveryElementOnce) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<Signature> tensors;
    for (unsigned i = 0; i < 1 + random() % 40; ++i) {
      tensors.push_back(signature(random() % 5000, static_cast<DataType>(random() % 4)));
      tensors.back().op = random() % 4 ? ReduceOp::sum : ReduceOp::max;
      tensors.back().priority = -static_cast<int32_t>(i / 10);
    }
    const int64_t fusion = random() % 20000, partition = 1 + random() % 8000;
    const auto buckets = plan_buckets(places(tensors), fusion, partition);
    std::vector<int64_t> next(tensors.size(), 0);
    for (const auto& bucket : buckets) {
      // Every more urgent tensor before this bucket's first one is in an earlier bucket. A piece
      // leaves no earlier tensor behind, whatever its priority.
      const auto& last = bucket.slices.back();
      int32_t urgency = tensors[static_cast<size_t>(bucket.slices.front().index)].priority;
      const bool is_piece = last.count < tensors[static_cast<size_t>(last.index)].shape.count();
      for (int64_t i = 0; i < bucket.slices.front().index; ++i) {
        const auto& before = tensors[static_cast<size_t>(i)];
        if (before.priority > urgency || is_piece) {
          EXPECT_EQ(next[static_cast<size_t>(i)], before.shape.count()) << i;
        }
      }
      int64_t offset = 0;
      for (const auto& slice : bucket.slices) {
        const auto& tensor = tensors[static_cast<size_t>(slice.index)];
        EXPECT_EQ(bucket.key, bucket_key(tensor));
        EXPECT_EQ(slice.begin, next[static_cast<size_t>(slice.index)]);
        EXPECT_EQ(slice.offset, offset);
        offset += slice.count;
        next[static_cast<size_t>(slice.index)] += slice.count;
      }
      EXPECT_EQ(offset, bucket.count);
      if (bucket.slices.size() > 1) {
        EXPECT_LE(bucket.count * size_of(bucket.key.wire), fusion);
      }
    }
    for (size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(next[i], tensors[i].shape.count());
  }
}

Signature moved(CollectiveKind kind, int64_t count) {
  auto made = signature(count);
  made.kind = kind;
  return made;
}

// Each kind has its own buckets. A large tensor goes alone, behind the tensors that came before it.
TEST(PlanBuckets, AllgathersAndReduceScattersShareTheirs) {
  const auto gather = moved(CollectiveKind::allgather, 10),
             scatter = moved(CollectiveKind::reduce_scatter, 10),
             large = moved(CollectiveKind::reduce_scatter, 5000), sum = signature(10);
  std::vector<Placeable> list;
  for (const auto* of : {&gather, &scatter, &sum, &gather, &scatter, &large, &gather})
    list.push_back({static_cast<int64_t>(list.size()), of, {}, of == &gather ? 20 : 0});
  const auto buckets = plan_buckets(list, 1 << 17, 1 << 20);
  ASSERT_EQ(buckets.size(), 5u);
  const auto indices = [](const Bucket& bucket) {
    std::vector<int64_t> found;
    for (const auto& slice : bucket.slices) found.push_back(slice.index);
    return found;
  };
  EXPECT_EQ(indices(buckets[0]), std::vector<int64_t>{2});
  EXPECT_EQ(indices(buckets[1]), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(buckets[1].key.kind, CollectiveKind::allgather);
  EXPECT_EQ(buckets[1].count, 40);
  EXPECT_EQ(indices(buckets[2]), (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(indices(buckets[3]), std::vector<int64_t>{5});
  EXPECT_EQ(indices(buckets[4]), std::vector<int64_t>{6});
}

}  // namespace
}  // namespace tutti
