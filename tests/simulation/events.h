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

/// Virtual time and the events to come. Events of the same time happen in the order in which they
/// were added, so that one seed gives one trace.
class Events {
 public:
  using Time = Clock::time_point;
  /// Returns the current time. It is never the epoch, which means "never" in some places.
  Time now() const { return now_; }
  void at(Time when, std::function<void()> event) {
    uint32_t slot = static_cast<uint32_t>(happenings_.size());
    if (free_.empty()) {
      happenings_.push_back(std::move(event));
    } else {
      slot = free_.back();
      free_.pop_back();
      happenings_[slot] = std::move(event);
    }
    heap_.push({std::max(when, now_).time_since_epoch().count(), made_++, slot});
  }
  void after(Clock::duration delay, std::function<void()> event) {
    at(now_ + delay, std::move(event));
  }
  bool empty() const { return heap_.empty(); }
  /// Returns the time of the next event, or Time::max() if there is none.
  Time next() const { return heap_.empty() ? Time::max() : Time(Time::duration(heap_.top().when)); }
  /// Runs the next event. Returns false if there is none.
  bool run_next() {
    if (heap_.empty()) return false;
    const Event event = heap_.top();
    heap_.pop();
    now_ = Time(Time::duration(event.when));
    const auto happen = std::exchange(happenings_[event.slot], nullptr);
    free_.push_back(event.slot);
    happen();
    return true;
  }

 private:
  // An event is small, because the heap moves it often. Its function lies in a slot.
  struct Event {
    Time::rep when;
    uint64_t number;
    uint32_t slot;
    bool operator<(const Event& other) const {
      return when != other.when ? when > other.when : number > other.number;
    }
  };
  Time now_ = Time(std::chrono::seconds(1000));
  uint64_t made_ = 0;
  std::priority_queue<Event> heap_;
  std::vector<std::function<void()>> happenings_;
  std::vector<uint32_t> free_;  // free slots
};

}  // namespace tutti::simulation
