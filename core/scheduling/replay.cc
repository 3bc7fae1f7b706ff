#include "tutti/core/scheduling/replay.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "tutti/base/check.h"

namespace tutti {

Replay::Replay(Plan plan, int rank, int size) : plan_(std::move(plan)), rank_(rank), size_(size) {
  tensors_.resize(plan_.tensors.size());
  std::vector<bool> begun(plan_.tensors.size(), false);
  std::vector<int64_t> needs;
  std::unordered_set<std::string_view> groups;
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    const auto& bucket = plan_.buckets[b];
    needs.clear();
    groups.clear();
    for (const auto& slice : bucket.slices) {
      const auto tensor = static_cast<size_t>(slice.index);
      ++tensors_[tensor].slices;
      needs.push_back(slice.index);
      // A group is launched completely or not at all. So its first bucket also waits for the
      // group's members in later buckets.
      const auto& group = plan_.tensors[tensor].signature.group;
      if (group.empty() || !groups.insert(group).second) continue;
      for (const int64_t member : plan_.groups.at(group))
        if (!begun[static_cast<size_t>(member)]) needs.push_back(member);
    }
    std::sort(needs.begin(), needs.end());
    needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
    for (const int64_t tensor : needs) tensors_[static_cast<size_t>(tensor)].needed_by.push_back(b);
    missing_.push_back(static_cast<int>(needs.size()));
    for (const auto& slice : bucket.slices) begun[static_cast<size_t>(slice.index)] = true;
  }
}

bool Replay::offer(Entry* entry) {
  if (entry->plan_id != plan_.id) {
    entry->plan_id = plan_.id;
    const auto found = plan_.index.find(entry->request.name);
    entry->plan_index = found == plan_.index.end() ? -1 : found->second;
    entry->fits_plan =
        entry->plan_index >= 0 &&
        plan_.tensors[static_cast<size_t>(entry->plan_index)].fits(entry->request, rank_, size_);
  }
  if (entry->plan_index < 0) return false;
  deviates_ |= !entry->fits_plan;
  auto& tensor = tensors_[static_cast<size_t>(entry->plan_index)];
  TUTTI_CHECK(tensor.here == nullptr);
  tensor.here = entry;
  for (const size_t bucket : tensor.needed_by)
    if (--missing_[bucket] == 0) inverted_ |= missing_[next_index_] > 0;
  order_ = order_ * 31 + static_cast<uint64_t>(entry->plan_index) + 1;
  entry->held_by_plan = entry->waits_in_plan = true;
  ++waiting_;
  entry->older = newest_;
  entry->newer = nullptr;
  (newest_ != nullptr ? newest_->newer : oldest_) = entry;
  newest_ = entry;
  return true;
}

void Replay::entries_of_next(std::vector<Entry*>& entries) const {
  entries.clear();
  for (const auto& slice : next_bucket().slices)
    entries.push_back(tensors_[static_cast<size_t>(slice.index)].here);
}

void Replay::launched() {
  for (const auto& slice : next_bucket().slices) {
    auto& tensor = tensors_[static_cast<size_t>(slice.index)];
    if (++tensor.launched < tensor.slices) continue;
    tensor.launched = 0;
    tensor.here->waits_in_plan = false;
    --waiting_;
    tensor.here = nullptr;
    for (const size_t bucket : tensor.needed_by) ++missing_[bucket];
  }
  ++next_sequence_;
  if (++next_index_ < plan_.buckets.size()) return;
  next_index_ = 0;
  const bool is_alike = order_ == last_order_;
  inverted_steps_ = std::exchange(inverted_, false) ? (is_alike ? inverted_steps_ + 1 : 1) : 0;
  last_order_ = std::exchange(order_, 0);
}

std::vector<std::string> Replay::missing() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (tensors_[i].here == nullptr &&
        std::find(tensors_[i].needed_by.begin(), tensors_[i].needed_by.end(), next_index_) !=
            tensors_[i].needed_by.end())
      names.push_back(plan_.tensors[i].name);
  return names;
}

int64_t Replay::missing_bytes() const {
  // For kinds other than allreduce, the sizes on this rank may differ from those in the plan.
  if (next_bucket().key.kind != CollectiveKind::allreduce) return 0;
  int64_t bytes = 0;
  for (const auto& slice : next_bucket().slices) {
    const auto tensor = static_cast<size_t>(slice.index);
    if (tensors_[tensor].here == nullptr)
      bytes += slice.count * size_of(plan_.tensors[tensor].signature.dtype);
  }
  return bytes;
}

std::vector<Entry*> Replay::take_waiting() {
  std::vector<Entry*> entries;
  for (Entry* entry = oldest_; entry != nullptr; entry = entry->newer)
    if (entry->waits_in_plan) entries.push_back(entry);
  for (Entry* entry : entries) {
    tensors_[static_cast<size_t>(entry->plan_index)].here = nullptr;
    entry->waits_in_plan = false;
    release(entry);
  }
  waiting_ = 0;
  return entries;
}

std::vector<Entry*> Replay::take_all() {
  std::vector<Entry*> entries;
  for (Entry* entry = oldest_; entry != nullptr; entry = entry->newer) {
    entries.push_back(entry);
    order_ = order_ * 31 + static_cast<uint64_t>(entry->plan_index) + 1;
    entry->held_by_plan = entry->waits_in_plan = false;
  }
  oldest_ = newest_ = nullptr;
  waiting_ = 0;
  for (auto& tensor : tensors_) tensor.here = nullptr;
  return entries;
}

void Replay::release(Entry* entry) {
  if (!entry->held_by_plan) return;
  entry->held_by_plan = false;
  (entry->older != nullptr ? entry->older->newer : oldest_) = entry->newer;
  (entry->newer != nullptr ? entry->newer->older : newest_) = entry->older;
  entry->older = entry->newer = nullptr;
}

}  // namespace tutti
