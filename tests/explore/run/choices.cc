#include "tests/explore/run/choices.h"

#include <utility>

namespace tutti::explore {

void Choices::meet(uint64_t state) {
  if (state == 0) state = 1;
  if (2 * seen_count_ >= seen_.size()) {
    const auto old = std::exchange(seen_, std::vector<Seen>(4 * seen_.size()));
    for (const auto& entry : old) {
      if (entry.state == 0) continue;
      size_t at = entry.state & (seen_.size() - 1);
      while (seen_[at].state != 0) at = (at + 1) & (seen_.size() - 1);
      seen_[at] = entry;
    }
  }
  size_t at = state & (seen_.size() - 1);
  while (seen_[at].state != 0 && seen_[at].state != state) at = (at + 1) & (seen_.size() - 1);
  auto& entry = seen_[at];
  if (entry.state == 0) {
    entry = {state, left_};
    ++seen_count_;
  } else if (entry.left >= left_) {
    is_known_ = true;
  } else {
    entry.left = left_;
  }
}

bool Choices::advance() {
  while (!list_.empty() && list_.back().picked + 1 == list_.back().count) list_.pop_back();
  if (list_.empty()) return false;
  ++list_.back().picked;
  return true;
}

}  // namespace tutti::explore
