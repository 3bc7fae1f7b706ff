#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::explore {

/// The list of choices of a run. The lists are made depth first. The first options of a choice are
/// free, and each other one costs 1. A state that was met before with at least the same cost left
/// has no choices, because all its continuations were tried.
class Choices {
 public:
  explicit Choices(int cost) : most_(cost), seen_(1 << 12) {}

  void begin_run() { next_ = 0, left_ = most_, is_known_ = false; }
  /// Returns how many of the options the remaining cost allows.
  int affordable(int free, int count) const { return left_ > 0 ? count : free; }
  /// Returns true if no run has made the next choice yet, so that its state must be recorded.
  bool is_new() const { return next_ == list_.size() && !is_known_; }
  void meet(uint64_t state);
  int choose(int free, int count) {
    count = affordable(free, count);
    if (count <= 1) return 0;
    if (next_ == list_.size()) {
      if (is_known_) return 0;
      list_.push_back({0, static_cast<uint8_t>(free), static_cast<uint8_t>(count)});
    }
    const auto& choice = list_[next_++];
    left_ -= choice.picked >= choice.free;
    return choice.picked;
  }
  /// Sets up the next run. Returns false if all runs were made.
  bool advance();
  /// Returns whether the run that ended made all choices of the list.
  bool were_made() const { return next_ == list_.size(); }

 private:
  struct Choice {
    uint8_t picked, free, count;
  };
  struct Seen {
    uint64_t state = 0;  // 0: an empty slot
    int left = 0;
  };

  const int most_;
  std::vector<Choice> list_;
  size_t next_ = 0;
  int left_ = 0;
  bool is_known_ = false;
  std::vector<Seen> seen_;  // a hash table with open addressing
  size_t seen_count_ = 0;
};

}  // namespace tutti::explore
