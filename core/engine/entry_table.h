#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/core/scheduling/entry.h"

namespace tutti {

/// Keeps one Entry per name between its uses. A name that is used again costs one look-up. It does
/// not even cost that if it follows the same name as last time. The table is bounded: when it has
/// too many names, it forgets those that are not pending.
class EntryTable {
 public:
  explicit EntryTable(size_t capacity) : capacity_(capacity) {}

  /// Returns the entry with this key; makes it if it does not exist. The entry keeps its address
  /// until it is forgotten. Pending entries are never forgotten.
  Entry& at(std::string_view key);
  /// Records a use of an entry that at() returned in this generation, without a look-up.
  void again(Entry& entry);
  /// Returns the pending entries, in the order in which they were submitted.
  std::vector<Entry*> pending() const;
  /// Drops Works that are kept for the next use, because they keep the engine alive.
  void drop_works();
  /// Returns a number that grows when entries are forgotten. Pointers from an earlier generation
  /// are invalid.
  uint64_t generation() const { return generation_; }
  void count_allocation() { ++allocations_; }
  uint64_t allocations() const { return allocations_; }

 private:
  struct Kept : Entry {
    std::string key;
    Kept* next = nullptr;  // the entry that was requested after this one last time
  };
  Kept& find(std::string_view key);
  void follow(Kept& kept);
  void trim();

  const size_t capacity_;
  size_t trim_at_ = capacity_;
  uint64_t generation_ = 1;
  uint64_t allocations_ = 0;
  std::unordered_map<std::string_view, std::unique_ptr<Kept>> entries_;  // by their keys
  Kept* last_ = nullptr;  // the entry that was requested last
};

}  // namespace tutti
