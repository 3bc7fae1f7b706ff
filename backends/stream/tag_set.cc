#include "tutti/backends/stream/tag_set.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace tutti {

bool TagSet::contains(uint64_t tag) const {
  if (ranges_.empty()) return false;
  const auto after = ranges_.upper_bound(tag);
  return after != ranges_.begin() && tag <= std::prev(after)->second;
}

void TagSet::insert(uint64_t first, uint64_t last) {
  if (first > last) return;
  // The new range is merged with the ranges that it overlaps or touches.
  auto at = ranges_.upper_bound(first);
  if (at != ranges_.begin()) {
    const auto before = std::prev(at);
    if (before->second >= first || before->second + 1 == first) at = before;
  }
  const auto touches = [&](uint64_t begin) {
    return begin <= last || (last != std::numeric_limits<uint64_t>::max() && begin == last + 1);
  };
  while (at != ranges_.end() && touches(at->first)) {
    first = std::min(first, at->first);
    last = std::max(last, at->second);
    at = ranges_.erase(at);
  }
  ranges_[first] = last;
  // Tags grow, so the messages of the lowest tags have long arrived. Forgetting the lowest range
  // bounds the size of the set.
  constexpr size_t kMostRanges = 4096;
  if (ranges_.size() > kMostRanges) ranges_.erase(ranges_.begin());
}

}  // namespace tutti
