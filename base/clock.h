#pragma once

#include <chrono>

namespace tutti {

/// The library's time, which never goes back. It is the steady clock's time, unless a test gives a
/// thread another source. Times have the type of std::chrono::steady_clock, so that a condition
/// variable can wait until one.
class Clock {
 public:
  // std::chrono requires a clock to have these types.
  using duration = std::chrono::steady_clock::duration;      // between two times
  using rep = duration::rep;                                 // its number of ticks
  using period = duration::period;                           // how long a tick is
  using time_point = std::chrono::steady_clock::time_point;  // a time
  static constexpr bool is_steady = true;                    // it is never set back

  static time_point now() noexcept;  // time of the calling thread's clock
  static void sleep_for(duration time);

  /// A clock that replaces the steady clock on a thread.
  class Source {
   public:
    virtual ~Source() = default;
    virtual time_point now() noexcept = 0;          // result of Clock::now()
    virtual void sleep_until(time_point when) = 0;  // called by Clock::sleep_for()
  };
  /// Replaces the calling thread's clock from now on; null restores the steady clock. `source` is
  /// borrowed. Returns the previous source.
  static Source* use(Source* source) noexcept;
};

}  // namespace tutti
