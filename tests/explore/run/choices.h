#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::explore {

/// The list of choices of a run, and which list is the next one, depth first. Of the options of a
/// choice the first ones are free, and each other costs 1. A state that was met before with as much
/// left to spend has no choices: all that can follow was tried there.
class Choices {
 public:
  explicit Choices(int cost) : most_(cost), seen_(1 << 12) {}

  void begin_run() { next_ = 0, left_ = most_, is_known_ = false; }
  /// Returns how many of the options can be paid now.
  int affordable(int free, int count) const { return left_ > 0 ? count : free; }
  /// Whether the next choice is one that no run has made, so that its state counts.
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
  /// False: all runs were made.
  bool advance();
  /// Whether a run that ended had the choices that its list says.
  bool were_made() const { return next_ == list_.size(); }

 private:
  struct Choice {
    uint8_t picked, free, count;
  };
  struct Seen {
    uint64_t state = 0;  // 0: nothing
    int left = 0;
  };

  const int most_;
  std::vector<Choice> list_;
  size_t next_ = 0;
  int left_ = 0;
  bool is_known_ = false;
  std::vector<Seen> seen_;  // a hash table with open addresses
  size_t seen_count_ = 0;
};

}  // namespace tutti::explore
