#pragma once

#include <cstdint>
#include <map>

namespace tutti {

/// A set of tags, kept as ranges. If there are too many ranges, the lowest is forgotten.
class TagSet {
 public:
  bool contains(uint64_t tag) const;
  /// Adds all tags from `first` to `last`. Adds nothing if last < first.
  void insert(uint64_t first, uint64_t last);

 private:
  // from the first tag of a range to its last; ranges do not overlap
  std::map<uint64_t, uint64_t> ranges_;
};

}  // namespace tutti
