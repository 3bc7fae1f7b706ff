#include "tutti/core/agreement/bucket.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace tutti {

BucketKey bucket_key(const Signature& signature, std::span<const int64_t> joined) {
  return {signature.kind,
          signature.wire,
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
    if (signature.kind != CollectiveKind::allreduce) return place_moved(key, tensor);
    if (signature.place >= 0) places_[tensor.index] = signature.place;
    const int64_t piece = partition_bytes_ > 0 ? std::max<int64_t>(1, partition_bytes_ / element)
                                               : signature.shape.count();
    int64_t begin = signature.begin;
    // Earlier tensors must not wait for all pieces of a tensor that is cut, so their buckets end
    // here.
    if (signature.shape.count() - begin > piece) close_all();
    for (; signature.shape.count() - begin > piece; begin += piece)
      alone(key, {tensor.index, begin, piece, 0});
    const int64_t count = signature.shape.count() - begin;
    if (begin > signature.begin)
      alone(key, {tensor.index, begin, count, 0});
    else
      share(key, {tensor.index, begin, count, 0}, signature.priority);
  }

  void place_moved(const BucketKey& key, const Placeable& tensor) {
    const auto& signature = *tensor.signature;
    const int64_t count = joins_parts(signature.kind) ? tensor.gathered : signature.shape.count();
    const BucketSlice slice{tensor.index, 0, count, 0};
    if (signature.placement == DeviceKind::cpu &&
        count * size_of(signature.wire) <= fusion_bytes_ / kLeastMovedInBucket)
      return share(key, slice, signature.priority);
    close_all();
    alone(key, slice);
  }

  void close_all() { close(open_.begin()); }

  std::vector<Bucket> take() {
    close_all();
    for (auto& bucket : done_)
      if (bucket.key.arena >= 0) order_by_place(bucket);
    return std::move(done_);
  }

 private:
  // A bucket to which tensors with its key can still be added.
  struct Open {
    Bucket bucket;
    int32_t priority = 0;  // highest priority of its tensors
  };

  // Completes the open buckets from `first` on. The most urgent bucket goes first. Among equally
  // urgent buckets, the one that was filled first goes first.
  void close(std::vector<Open>::iterator first) {
    std::sort(first, open_.end(), [](const Open& a, const Open& b) {
      return std::pair(-int64_t{a.priority}, a.bucket.slices.back().index) <
             std::pair(-int64_t{b.priority}, b.bucket.slices.back().index);
    });
    for (auto open = first; open != open_.end(); ++open) done_.push_back(std::move(open->bucket));
    open_.erase(first, open_.end());
  }

  void alone(const BucketKey& key, const BucketSlice& slice) {
    done_.push_back({key, {slice}, slice.count});
  }

  void share(const BucketKey& key, BucketSlice slice, int32_t priority) {
    const auto find = [&] {
      return std::find_if(open_.begin(), open_.end(),
                          [&](const Open& open) { return open.bucket.key == key; });
    };
    auto open = find();
    if (open != open_.end() && (open->bucket.count + slice.count) * size_of(key.wire) > limit_) {
      limit_ = fusion_bytes_;
      // A full bucket may go ahead of open buckets with other keys, unless they are more urgent.
      const int32_t urgency = open->priority;
      close(std::partition(open_.begin(), open_.end(), [&](const Open& other) {
        return other.bucket.key != key && other.priority <= urgency;
      }));
      open = open_.end();
    }
    if (open == open_.end()) open = open_.insert(open, {{key, {}, 0}, priority});
    auto& bucket = open->bucket;
    slice.offset = bucket.count;
    bucket.count += slice.count;
    bucket.slices.push_back(slice);
    open->priority = std::max(open->priority, priority);
  }

  // Orders the slices by offset in the arena, so that neighbours in its memory are neighbours in
  // the bucket.
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

  std::unordered_map<int64_t, int64_t> places_;  // offset of each tensor that is in an arena
  const int64_t fusion_bytes_;
  const int64_t partition_bytes_;
  int64_t limit_;  // greatest size in bytes of the current bucket
  std::vector<Open> open_;
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
