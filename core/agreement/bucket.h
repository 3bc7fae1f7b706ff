#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/core/agreement/request.h"

namespace tutti {

/// What operations must have in common to share a bucket. Their dtypes may differ: packing casts to
/// the wire type.
struct BucketKey {
  CollectiveKind kind = CollectiveKind::allreduce;
  DataType wire = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  DeviceKind placement = DeviceKind::cpu;
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t arena = -1;  // number of the GradientArena in which all of it lies
  std::vector<int64_t> joined;
  bool operator==(const BucketKey&) const = default;
};

BucketKey bucket_key(const Signature& signature, std::span<const int64_t> joined = {});

/// Elements [begin, begin + count) of tensor `index` lie at `offset` of the bucket.
struct BucketSlice {
  int64_t index = 0;
  int64_t begin = 0;
  int64_t count = 0;
  int64_t offset = 0;
  bool operator==(const BucketSlice&) const = default;
};

struct Bucket {
  BucketKey key;
  std::vector<BucketSlice> slices;
  int64_t count = 0;  // elements
  bool operator==(const Bucket&) const = default;
};

/// One operation to be placed: its signature and the ranks that have joined.
struct Placeable {
  int64_t index = 0;
  const Signature* signature = nullptr;
  std::span<const int64_t> joined = {};
  int64_t gathered = 0;  // elements of all ranks together, if their parts are joined
};

/// Of what is fused all is packed, and what is moved is unpacked again: an allgather or
/// reduce_scatter that is a larger share of a bucket than one of so many travels alone, from and to
/// the user's memory. docs/decisions.md has the measurement.
inline constexpr int64_t kLeastMovedInBucket = 64;

/// Fuses operations, in their order, into buckets of at most `fusion_bytes`; an allreduce above
/// `partition_bytes` is cut into pieces that travel alone. One bucket per key is open at a time, so
/// mixed types do not cut each other's buckets; buckets come out in the order in which they are
/// complete, but nothing overtakes a more urgent tensor, and no piece of a cut one overtakes
/// anything. `cuts`: indices that may not share a bucket with anything before them. `first_bytes`:
/// of the first bucket that is shared; 0: like all. Pure, and equal on all ranks for equal input.
std::vector<Bucket> plan_buckets(std::span<const Placeable> tensors, int64_t fusion_bytes,
                                 int64_t partition_bytes, std::span<const int64_t> cuts = {},
                                 int64_t first_bytes = 0);

}  // namespace tutti
