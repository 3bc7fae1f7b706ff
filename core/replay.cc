#include "tutti/core/replay.h"

#include <algorithm>
#include <utility>

#include "tutti/base/check.h"

namespace tutti {

Replay::Replay(Plan plan) : plan_(std::move(plan)) {
  queues_.resize(plan_.tensors.size());
  slices_.resize(plan_.tensors.size());
  launched_.resize(plan_.tensors.size());
  std::vector<bool> begun(plan_.tensors.size(), false);
  for (const auto& bucket : plan_.buckets) {
    auto& needs = needs_.emplace_back();
    for (const auto& slice : bucket.slices) {
      const auto tensor = static_cast<size_t>(slice.index);
      ++slices_[tensor];
      needs.push_back(slice.index);
      const auto& group = plan_.tensors[tensor].signature.group;
      if (group.empty()) continue;
      for (const int64_t member : plan_.groups.at(group))
        if (!begun[static_cast<size_t>(member)]) needs.push_back(member);
    }
    std::sort(needs.begin(), needs.end());
    needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
    for (const auto& slice : bucket.slices) begun[static_cast<size_t>(slice.index)] = true;
  }
}

bool Replay::offer(Entry* entry) {
  const auto found = plan_.index.find(entry->request.name);
  if (found == plan_.index.end()) return false;
  const auto& expected = plan_.tensors[static_cast<size_t>(found->second)].signature;
  deviates_ |= entry->request.signature != expected;
  queues_[static_cast<size_t>(found->second)].push_back(entry);
  waiting_.push_back(entry);
  held_.push_back(entry);
  return true;
}

const Bucket& Replay::next_bucket() const { return plan_.buckets[next_index()]; }

bool Replay::here(int64_t tensor) const { return !queues_[static_cast<size_t>(tensor)].empty(); }

std::optional<Replay::Next> Replay::next() {
  if (deviates_) return {};
  for (const int64_t tensor : needs_[next_index()])
    if (!here(tensor)) return {};
  Next next{next_sequence_, &next_bucket(), {}};
  for (const auto& slice : next.bucket->slices)
    next.entries.push_back(queues_[static_cast<size_t>(slice.index)].front());
  return next;
}

void Replay::launched() {
  for (const auto& slice : next_bucket().slices) {
    const auto tensor = static_cast<size_t>(slice.index);
    if (++launched_[tensor] < slices_[tensor]) continue;
    launched_[tensor] = 0;
    std::erase(waiting_, queues_[tensor].front());
    queues_[tensor].pop_front();
  }
  ++next_sequence_;
}

std::vector<std::string> Replay::missing() const {
  std::vector<std::string> names;
  for (const int64_t tensor : needs_[next_index()])
    if (!here(tensor)) names.push_back(plan_.tensors[static_cast<size_t>(tensor)].name);
  return names;
}

std::vector<Entry*> Replay::take_all() {
  waiting_.clear();
  for (auto& queue : queues_) queue.clear();
  return std::exchange(held_, {});
}

void Replay::release(Entry* entry) { std::erase(held_, entry); }

}  // namespace tutti
