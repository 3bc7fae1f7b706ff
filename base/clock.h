#pragma once

#include <chrono>

namespace tutti {

/// The time of the library, which is never set back: that of the steady clock, or on a thread of a
/// test whatever it puts there. Times are those of std::chrono::steady_clock, so that a condition
/// can wait until one.
class Clock {
 public:
  // What std::chrono asks of a clock.
  using duration = std::chrono::steady_clock::duration;      // between two times
  using rep = duration::rep;                                 // its number of ticks
  using period = duration::period;                           // how long a tick is
  using time_point = std::chrono::steady_clock::time_point;  // a time
  static constexpr bool is_steady = true;                    // it is never set back

  static time_point now() noexcept;  // by the calling thread's clock
  /// The calling thread does nothing for so long.
  static void sleep_for(duration time);

  /// A clock that a thread may have instead of the steady one.
  class Source {
   public:
    virtual ~Source() = default;
    virtual time_point now() noexcept = 0;          // for Clock::now()
    virtual void sleep_until(time_point when) = 0;  // for Clock::sleep_for()
  };
  /// The calling thread's clock from now on; null: the steady clock. Does not own it. Returns the
  /// one before.
  static Source* use(Source* source) noexcept;
};

}  // namespace tutti
