#include "tutti/core/entry_table.h"

#include <algorithm>

namespace tutti {

Entry& EntryTable::at(std::string_view key) {
  const auto found = entries_.find(key);
  if (found != entries_.end()) return *found->second;
  if (entries_.size() >= trim_at_) trim();
  ++allocations_;
  auto entry = std::make_unique<Entry>();
  return *entries_.emplace(key, std::move(entry)).first->second;
}

void EntryTable::trim() {
  std::erase_if(entries_, [](const auto& item) { return !item.second->pending; });
  ++generation_;
  trim_at_ = std::max(capacity_, 2 * entries_.size());
}

void EntryTable::drop_works() {
  for (auto& [key, entry] : entries_) {
    if (!entry->pending) entry->work.reset();
    entry->last_work.reset();
  }
}

}  // namespace tutti
