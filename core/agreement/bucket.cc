#include "tutti/core/agreement/bucket.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace tutti {

BucketKey bucket_key(const Signature& signature, std::span<const int64_t> joined) {
  return {signature.wire,
          signature.op,
          signature.placement,
          signature.prescale,
          signature.postscale,
          signature.place < 0 ? -1 : signature.place >> kArenaShift,
          {joined.begin(), joined.end()}};
}

namespace {

class Planner {
 public:
  Planner(int64_t fusion_bytes, int64_t partition_bytes, int64_t first_bytes)
      : fusion_bytes_(fusion_bytes), partition_bytes_(partition_bytes), limit_(first_bytes) {}

  void place(const Placeable& tensor) {
    const auto& signature = *tensor.signature;
    const auto key = bucket_key(signature, tensor.joined);
    const int64_t element = size_of(signature.wire);
    if (signature.place >= 0) places_[tensor.index] = signature.place;
    const int64_t piece = partition_bytes_ > 0 ? std::max<int64_t>(1, partition_bytes_ / element)
                                               : signature.shape.count();
    int64_t begin = signature.begin;
    for (; signature.shape.count() - begin > piece; begin += piece)
      alone(key, {tensor.index, begin, piece, 0});
    const int64_t count = signature.shape.count() - begin;
    if (begin > signature.begin)
      alone(key, {tensor.index, begin, count, 0});
    else
      share(key, {tensor.index, begin, count, 0});
  }

  void close_all() {
    std::sort(open_.begin(), open_.end(), [](const Bucket& a, const Bucket& b) {
      return a.slices.back().index < b.slices.back().index;
    });
    std::move(open_.begin(), open_.end(), std::back_inserter(done_));
    open_.clear();
  }

  std::vector<Bucket> take() {
    close_all();
    for (auto& bucket : done_)
      if (bucket.key.arena >= 0) order_by_place(bucket);
    return std::move(done_);
  }

 private:
  void alone(const BucketKey& key, const BucketSlice& slice) {
    done_.push_back({key, {slice}, slice.count});
  }

  void share(const BucketKey& key, BucketSlice slice) {
    auto open = std::find_if(open_.begin(), open_.end(),
                             [&](const Bucket& bucket) { return bucket.key == key; });
    if (open != open_.end() && (open->count + slice.count) * size_of(key.wire) > limit_) {
      limit_ = fusion_bytes_;
      done_.push_back(std::move(*open));
      open_.erase(open);
      open = open_.end();
    }
    if (open == open_.end()) open = open_.insert(open_.end(), {key, {}, 0});
    slice.offset = open->count;
    open->count += slice.count;
    open->slices.push_back(slice);
  }

  // In an arena neighbours in memory should be neighbours in the bucket.
  void order_by_place(Bucket& bucket) const {
    std::sort(bucket.slices.begin(), bucket.slices.end(),
              [&](const BucketSlice& a, const BucketSlice& b) {
                return std::pair(places_.at(a.index), a.begin) <
                       std::pair(places_.at(b.index), b.begin);
              });
    int64_t offset = 0;
    for (auto& slice : bucket.slices) {
      slice.offset = offset;
      offset += slice.count;
    }
  }

  std::unordered_map<int64_t, int64_t> places_;  // in an arena, of each tensor there
  const int64_t fusion_bytes_;
  const int64_t partition_bytes_;
  int64_t limit_;  // of the bucket that is filled now
  std::vector<Bucket> open_;
  std::vector<Bucket> done_;
};

}  // namespace

std::vector<Bucket> plan_buckets(std::span<const Placeable> tensors, int64_t fusion_bytes,
                                 int64_t partition_bytes, std::span<const int64_t> cuts,
                                 int64_t first_bytes) {
  Planner planner(fusion_bytes, partition_bytes, first_bytes > 0 ? first_bytes : fusion_bytes);
  for (const auto& tensor : tensors) {
    if (std::find(cuts.begin(), cuts.end(), tensor.index) != cuts.end()) planner.close_all();
    planner.place(tensor);
  }
  return planner.take();
}

}  // namespace tutti
