#include "tutti/core/engine/entry_table.h"

#include <algorithm>

namespace tutti {

namespace {

void fetch(const void* object, size_t bytes) {
  constexpr size_t kLineBytes = 64;
  const auto* begin = static_cast<const char*>(object);
  for (size_t i = 0; i < bytes; i += kLineBytes) __builtin_prefetch(begin + i, 1);
}

}  // namespace

Entry& EntryTable::at(std::string_view key) {
  Kept* kept = last_ == nullptr ? nullptr : last_->next;
  if (kept == nullptr || kept->key != key) kept = &find(key);
  follow(*kept);
  return *kept;
}

void EntryTable::again(Entry& entry) { follow(static_cast<Kept&>(entry)); }

void EntryTable::follow(Kept& kept) {
  if (last_ != nullptr) last_->next = &kept;
  last_ = &kept;
  const Kept* next = kept.next;
  if (next == nullptr) return;
  if (next->last_work) fetch(next->last_work.get(), sizeof(WorkState));
  if (next->next != nullptr) fetch(next->next, sizeof(Kept));
}

EntryTable::Kept& EntryTable::find(std::string_view key) {
  const auto found = entries_.find(key);
  if (found != entries_.end()) return *found->second;
  if (entries_.size() >= trim_at_) trim();
  ++allocations_;
  auto made = std::make_unique<Kept>();
  made->key = key;
  Kept& kept = *made;
  entries_.emplace(kept.key, std::move(made));
  return kept;
}

void EntryTable::trim() {
  std::erase_if(entries_, [](const auto& item) { return !item.second->pending; });
  for (const auto& [key, entry] : entries_) entry->next = nullptr;
  last_ = nullptr;
  ++generation_;
  trim_at_ = std::max(capacity_, 2 * entries_.size());
}

std::vector<Entry*> EntryTable::pending() const {
  std::vector<Entry*> entries;
  for (const auto& [key, entry] : entries_)
    if (entry->pending) entries.push_back(entry.get());
  std::sort(entries.begin(), entries.end(),
            [](const Entry* a, const Entry* b) { return a->order < b->order; });
  return entries;
}

void EntryTable::drop_works() {
  for (auto& [key, entry] : entries_) {
    if (!entry->pending) entry->work.reset();
    entry->last_work.reset();
  }
}

}  // namespace tutti
