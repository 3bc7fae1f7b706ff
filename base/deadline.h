#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "tutti/base/clock.h"

namespace tutti {

/// A point in time after which waiting is an error. It can be copied.
class Deadline {
 public:
  static Deadline never() { return Deadline(Clock::time_point::max()); }  // never passes
  /// Returns the deadline that is this many seconds from now.
  static Deadline after(double seconds) {
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(std::min(seconds, 1e8))));
  }
  static Deadline at(Clock::time_point when) { return Deadline(when); }  // on the steady clock

  /// True if waiting longer is an error.
  bool passed() const { return !is_never() && Clock::now() >= when_; }
  bool is_never() const { return when_ == Clock::time_point::max(); }  // true if made by never()
  Clock::time_point when() const { return when_; }                     // on the steady clock

  /// Returns the milliseconds for poll() or epoll_wait(): rounded up, -1 for never, and 0 once the
  /// deadline has passed.
  int poll_milliseconds() const {
    if (is_never()) return -1;
    const auto left = when_ - Clock::now();
    if (left <= Clock::duration::zero()) return 0;
    return static_cast<int>(std::min<int64_t>(
        std::chrono::ceil<std::chrono::milliseconds>(left).count(), 1'000'000'000));
  }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

}  // namespace tutti
