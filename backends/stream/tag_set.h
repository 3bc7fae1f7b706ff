#pragma once

#include <cstdint>
#include <map>

namespace tutti {

/// A set of tags as ranges. It is bounded: if there are too many ranges, the lowest is forgotten.
class TagSet {
 public:
  bool contains(uint64_t tag) const;
  /// Adds all of [first, last]; adds nothing if last < first.
  void insert(uint64_t first, uint64_t last);

 private:
  std::map<uint64_t, uint64_t> ranges_;  // first to last, not overlapping
};

}  // namespace tutti
