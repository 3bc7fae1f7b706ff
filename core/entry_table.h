#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tutti/core/entry.h"

namespace tutti {

/// One Entry for each name, kept from one use to the next, so that a name that comes again costs a
/// look-up and nothing else. Bounded: names that are not pending are forgotten when they are many.
class EntryTable {
 public:
  explicit EntryTable(size_t capacity) : capacity_(capacity) {}

  /// The entry of this key, made if it is not there. Stays where it is until forgotten, which does
  /// not happen while it is pending.
  Entry& at(std::string_view key);
  /// Drops the kept Works, which hold the engine.
  void drop_works();
  /// Grows when entries were forgotten: pointers kept from before mean nothing then.
  uint64_t generation() const { return generation_; }
  uint64_t allocations() const { return allocations_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  void trim();

  const size_t capacity_;
  size_t trim_at_ = capacity_;
  uint64_t generation_ = 1;
  uint64_t allocations_ = 0;
  std::unordered_map<std::string, std::unique_ptr<Entry>, Hash, std::equal_to<>> entries_;
};

}  // namespace tutti
