#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/core/scheduling/entry.h"

namespace tutti {

/// One Entry for each name, kept from one use to the next, so that a name that comes again costs a
/// look-up and nothing else; a name that comes after the one that it came after last time, not even
/// that. Bounded: names that are not pending are forgotten when they are many.
class EntryTable {
 public:
  explicit EntryTable(size_t capacity) : capacity_(capacity) {}

  /// The entry of this key, made if it is not there. Stays where it is until forgotten, which does
  /// not happen while it is pending.
  Entry& at(std::string_view key);
  /// The same for an entry that at() gave, in this generation.
  void again(Entry& entry);
  /// Those that are pending, in the order in which they were submitted.
  std::vector<Entry*> pending() const;
  /// Drops the kept Works, which hold the engine.
  void drop_works();
  /// Grows when entries were forgotten: pointers kept from before mean nothing then.
  uint64_t generation() const { return generation_; }
  /// A Work was allocated for an entry.
  void count_allocation() { ++allocations_; }
  uint64_t allocations() const { return allocations_; }

 private:
  struct Kept : Entry {
    std::string key;
    Kept* next = nullptr;  // the key that was asked for after this one
  };
  Kept& find(std::string_view key);
  void follow(Kept& kept);
  void trim();

  const size_t capacity_;
  size_t trim_at_ = capacity_;
  uint64_t generation_ = 1;
  uint64_t allocations_ = 0;
  std::unordered_map<std::string_view, std::unique_ptr<Kept>> entries_;  // by their keys
  Kept* last_ = nullptr;                                                 // that was asked for
};

}  // namespace tutti
