#pragma once

#include <cstdint>
#include <map>

namespace tutti {

/// A set of tags as ranges. Bounded: of very many ranges the lowest is forgotten first.
class TagSet {
 public:
  bool contains(uint64_t tag) const;
  /// All of [first, last]; nothing if last is less.
  void insert(uint64_t first, uint64_t last);

 private:
  std::map<uint64_t, uint64_t> ranges_;  // first to last, not overlapping
};

}  // namespace tutti
