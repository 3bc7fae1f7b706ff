#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/core/agreement/request.h"

namespace tutti {

/// The properties that operations must have in common to share a bucket. Their dtypes may differ,
/// because packing casts to the wire type.
struct BucketKey {
  CollectiveKind kind = CollectiveKind::allreduce;
  DataType wire = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  DeviceKind placement = DeviceKind::cpu;
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t arena = -1;  // id of the GradientArena that holds all tensors; -1: none
  std::vector<int64_t> joined;
  bool operator==(const BucketKey&) const = default;
};

BucketKey bucket_key(const Signature& signature, std::span<const int64_t> joined = {});

/// Elements [begin, begin + count) of tensor `index` are at element `offset` of the bucket.
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

/// One operation that is to be put into a bucket: its signature and the ranks that have joined.
struct Placeable {
  int64_t index = 0;
  const Signature* signature = nullptr;
  std::span<const int64_t> joined = {};
  int64_t gathered = 0;  // number of elements of all ranks' parts, if they are joined; else 0
};

/// A bucket of several operations is packed before it is sent and unpacked afterwards. An allgather
/// or reduce_scatter that is larger than 1 / kLeastMovedInBucket of a full bucket therefore travels
/// alone, directly between the users' buffers. docs/decisions.md has the measurement.
inline constexpr int64_t kLeastMovedInBucket = 64;

/// Fuses operations, in the given order, into buckets of at most `fusion_bytes`. An allreduce above
/// `partition_bytes` is cut into pieces, each with its own bucket. One bucket per key is open at a
/// time, so a tensor with another key does not end a bucket. The buckets are returned in the order
/// in which they became complete. But no bucket overtakes a more urgent tensor, and no piece of a
/// cut tensor overtakes anything. `cuts` has the indices of tensors that may not share a bucket
/// with earlier tensors. `first_bytes` is the limit of the first shared bucket; 0: `fusion_bytes`.
/// Pure, and equal on all ranks for equal input.
std::vector<Bucket> plan_buckets(std::span<const Placeable> tensors, int64_t fusion_bytes,
                                 int64_t partition_bytes, std::span<const int64_t> cuts = {},
                                 int64_t first_bytes = 0);

}  // namespace tutti
