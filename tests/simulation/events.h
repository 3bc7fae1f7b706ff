#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti::simulation {

/// Virtual time, and what is to happen in it. Events of one time happen in the order in which they
/// were made, so that one seed gives one trace.
class Events {
 public:
  using Time = Clock::time_point;
  /// Never the epoch, which means "never" in places.
  Time now() const { return now_; }
  void at(Time when, std::function<void()> event) {
    heap_.push({std::max(when, now_), made_++, std::move(event)});
  }
  void after(Clock::duration delay, std::function<void()> event) {
    at(now_ + delay, std::move(event));
  }
  bool empty() const { return heap_.empty(); }
  /// When the next event happens; Time::max() if there is none.
  Time next() const { return heap_.empty() ? Time::max() : heap_.top().when; }
  /// Makes the next event happen. False: there is none.
  bool run_next() {
    if (heap_.empty()) return false;
    auto event = std::move(const_cast<Event&>(heap_.top()));
    heap_.pop();
    now_ = event.when;
    event.happen();
    return true;
  }

 private:
  struct Event {
    Time when;
    uint64_t number;
    std::function<void()> happen;
    bool operator<(const Event& other) const {
      return std::pair(when, number) > std::pair(other.when, other.number);
    }
  };
  Time now_ = Time(std::chrono::seconds(1000));
  uint64_t made_ = 0;
  std::priority_queue<Event> heap_;
};

}  // namespace tutti::simulation
