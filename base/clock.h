#pragma once

#include <chrono>

namespace tutti {

/// The time of the library, which is never set back: that of the steady clock, or on a thread of a
/// test whatever it puts there. Times are those of std::chrono::steady_clock, so that a condition
/// can wait until one.
class Clock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  static time_point now() noexcept;
  /// The calling thread does nothing for so long.
  static void sleep_for(duration time);

  /// A clock that a thread may have instead of the steady one.
  class Source {
   public:
    virtual ~Source() = default;
    virtual time_point now() noexcept = 0;
    virtual void sleep_until(time_point when) = 0;
  };
  /// The calling thread's clock from now on; null: the steady clock. Does not own it. Returns the
  /// one before.
  static Source* use(Source* source) noexcept;
};

}  // namespace tutti
