#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

#include "tutti/base/deadline.h"
#include "tutti/base/sync.h"
#include "tutti/core/threads/token.h"
#include "tutti/core/threads/wake_bell.h"

namespace tutti {

/// Decides which thread runs the machine, which is an engine. Only the thread that holds the token
/// runs it. A thread that waits for something runs the machine itself (it drives). A blocking call
/// takes the token from a driving thread. When no thread waits, the background thread runs the
/// machine in serve(). The holder of the token sleeps in one place, inside the machine, where the
/// bell wakes it.
///
/// A Machine has the following functions. Only the holder of the token calls them, except sleep().
///   guarded(function)   runs the function and handles its exceptions; false: it threw
///   step()              runs one step; true: there was progress. It silences the bell first
///   arm()               prepares for sleep; false: something arrived, so do not sleep
///   wake_at()           returns when the next step is due if nothing arrives
///   pending()           returns whether something waits for other ranks
///   can_go_on()         returns whether the next step makes progress even if nothing arrives
///   publish()           publishes the statistics
/// Only serve() calls these functions:
///   be_quiet()          declares which calls need not wake it; false: calls have already arrived
///   rests()             the background thread is about to sleep
///   sleep(until)        sleeps until that time, or until a peer or the bell wakes it, and then
///                       calls slept() of the bell. The caller does not hold the token
/// Only drive() calls these functions:
///   begin()             a driver has taken the token
///   rest(until)         spins, yields, or sleeps, until that time at the latest
template <class Sync = Threads>
class TurnsOf {
 public:
  using Time = Clock::time_point;

  /// The life of the background thread, and of the whole object.
  ///
  ///   unborn --begin()--> serving --end()--> ending --serve() returns--> ended
  ///      |                                   ^    |                        |
  ///      +--------------end()----------------+    +----> stranded <--------+
  ///
  /// The life becomes stranded if a thread does not give the token back in time.
  enum class Life : uint8_t { unborn, serving, ending, ended, stranded };

  // --- threads that make blocking calls, and threads that try once ---
  bool try_take() { return token_.take(); }
  /// Waits for the token. A driver that holds it gives it up, and the caller then does the driver's
  /// work too.
  void claim();
  /// Gives the token back. From then on, another thread may take it and destroy the machine.
  void give() {
    if (!token_.put_back_unwanted()) give_to_another();
  }

  // --- turns of the threads that wait ---
  /// Runs the machine, or sleeps while another thread runs it, until `done` returns true or until
  /// the time `until`. max() means no time limit.
  template <class Machine, class Done>
  void drive(Machine& machine, const Done& done, Time until);
  /// Called by a driver that is about to give the token back. Makes sure that the background thread
  /// wakes for everything that is still pending, and for the next deadline.
  template <class Machine>
  void leave(Machine& machine);
  /// Wakes drivers after an event for which they may wait. The caller may hold the token or not.
  void wake_drivers() {
    const std::lock_guard lock(mutex_);
    if (token_.waiting_drivers() > 0) drivers_.notify_all();
  }

  // --- the background thread ---
  /// Waits for begin(). Then runs the machine whenever no other thread does, until end().
  template <class Machine>
  void serve(Machine& machine);
  /// Returns the number of times that the background thread has slept.
  uint64_t wakeups() const { return wakeups_; }

  // --- any thread ---
  /// Makes the holder of the token check again everything that waits. Never blocks.
  void wake() { bell_.ring(); }
  WakeBellOf<Sync>& bell() { return bell_; }

  Life life() const { return life_.load(); }
  bool is_ending() const { return life() >= Life::ending; }
  /// Lets the background thread run the machine. Returns false if end() was called earlier.
  bool begin();
  /// Makes the background thread and all drivers stop.
  void end();
  /// Called after end(). Waits until serve() has returned or is about to return. Returns false if
  /// the background thread does not end in time, because it runs an update or an observer of the
  /// program. The life is then stranded.
  bool ended_by(Time deadline);
  /// Takes the token for ever, after end(). The thread that holds the token finishes its step,
  /// notices the end and gives the token back. Returns false if that did not happen in time. The
  /// life is then stranded.
  bool take_by(Time deadline);

 private:
  using Lock = std::unique_lock<typename Sync::Mutex>;
  static constexpr auto kNap = std::chrono::microseconds(100);

  static bool has_passed(Time time) { return time != Time::max() && Sync::now() >= time; }
  bool is_claimed() const { return claims_.load(std::memory_order_relaxed) > 0; }
  void give_to_another();
  /// Wakes the thread that must get the token next.
  void hand_on(const Lock&);
  template <class Machine, class Done>
  void drive_until(Machine& machine, const Done& done, Time until);
  /// Makes the background thread sleep for at most kNap, without preparing the machine to wake it.
  /// If threads drive often, as in a loop of exchanges, they handle what arrives. A background
  /// thread that wakes too would only disturb them. Each of them would also have to prepare the
  /// machine to wake it. So the background thread naps, and checks again when no thread has driven
  /// for a while. It does not nap if calls of this rank wake it, as asynchronous calls do. Returns
  /// false if it does not nap now, or if the bell was rung.
  bool nap(Lock& lock);

  TokenOf<Sync> token_;
  typename Sync::template Atomic<int> claims_{0};  // number of threads that sleep in claim()
  typename Sync::template Atomic<Life> life_{Life::unborn};
  WakeBellOf<Sync> bell_;
  typename Sync::template Atomic<uint64_t> wakeups_{0};
  // Used only by the background thread. True if its last wake came from a peer and not from bell_.
  bool woken_by_peers_ = false;

  typename Sync::Mutex mutex_;           // guards the members below
  typename Sync::Condition drivers_;     // all threads except the background thread
  typename Sync::Condition background_;  // only the background thread, so notify_one() wakes it
  bool naps_ = false;                    // true while the background thread is in nap()
  Time left_idle_at_;  // time when the last driver left; not set if something was pending
  Time sleeping_until_ = Time::max();
};

template <class Sync>
void TurnsOf<Sync>::claim() {
  Lock lock(mutex_);
  ++claims_;
  while (!token_.take_or_sleep()) {
    // The holder of the token may sleep in the poller.
    wake();
    drivers_.wait(lock);
    token_.driver_wakes();
  }
  --claims_;
}

// The mutex keeps take_by() from taking the token before this thread has finished here.
template <class Sync>
void TurnsOf<Sync>::give_to_another() {
  Lock lock(mutex_);
  static_cast<void>(token_.put_back());
  hand_on(lock);
}

template <class Sync>
void TurnsOf<Sync>::hand_on(const Lock&) {
  switch (token_.next()) {
    case TokenOf<Sync>::Wake::a_driver:
      drivers_.notify_all();
      break;
    case TokenOf<Sync>::Wake::the_background:
      background_.notify_one();
      break;
    case TokenOf<Sync>::Wake::no_thread:
      break;
  }
}

template <class Sync>
template <class Machine, class Done>
void TurnsOf<Sync>::drive(Machine& machine, const Done& done, Time until) {
  Lock lock(mutex_);
  while (!done() && !has_passed(until)) {
    if (is_claimed()) {
      // A blocking call of another thread needs the token. That call also does the work for which
      // this thread waits.
      token_.step_aside();
      hand_on(lock);
    } else if (token_.take_or_sleep()) {
      lock.unlock();
      machine.guarded([&] { drive_until(machine, done, until); });
      lock.lock();
      static_cast<void>(token_.put_back());
      continue;
    }
    // The holder may sleep in the poller. It may not know of an operation that this thread
    // submitted, because the submission did not wake it.
    wake();
    if (until == Time::max())
      drivers_.wait(lock);
    else
      drivers_.wait_until(lock, until);
    token_.driver_wakes();
  }
  hand_on(lock);
}

template <class Sync>
template <class Machine, class Done>
void TurnsOf<Sync>::drive_until(Machine& machine, const Done& done, Time until) {
  machine.begin();
  while (!done() && !has_passed(until) && !is_claimed()) {
    if (machine.step()) continue;
    // A callback on another thread may have made `done` true. Or another thread claims the token
    // and rang the bell to wake this thread, and this step silenced that bell.
    if (done() || is_claimed()) break;
    machine.rest(until);
  }
  machine.publish();
  leave(machine);
}

// The background thread went to sleep before this thread drove. It must prepare its sleep again if
// more may arrive for this rank, or if something is due earlier than it knows. A napping background
// thread prepares by itself, unless something is pending that cannot wait for the end of the nap.
template <class Sync>
template <class Machine>
void TurnsOf<Sync>::leave(Machine& machine) {
  const bool goes_on = machine.can_go_on();
  const bool idle = !machine.pending() && !goes_on;
  {
    const std::lock_guard lock(mutex_);
    Sync::writes(&left_idle_at_);
    left_idle_at_ = idle ? Sync::now() : Time();
    Sync::reads(&naps_);
    if (naps_ && idle) return;
  }
  const bool armed = machine.arm();
  const auto due = machine.wake_at();
  const std::lock_guard lock(mutex_);
  Sync::reads(&sleeping_until_);
  Sync::reads(&naps_);
  // A step of this thread may have silenced the bell that end() rang.
  if (!armed || goes_on || is_ending() || due < sleeping_until_ || (naps_ && !idle)) wake();
}

template <class Sync>
bool TurnsOf<Sync>::nap(Lock& lock) {
  Sync::reads(&left_idle_at_);
  if (!woken_by_peers_ || Sync::now() - left_idle_at_ >= kNap) return false;
  Sync::writes(&naps_);
  naps_ = true;
  lock.unlock();
  woken_by_peers_ = !bell_.wait(kNap);
  lock.lock();
  Sync::writes(&naps_);
  naps_ = false;
  return woken_by_peers_;
}

template <class Sync>
template <class Machine>
void TurnsOf<Sync>::serve(Machine& machine) {
  life_.wait(Life::unborn);
  Lock lock(mutex_);
  while (!is_ending()) {
    // During a nap the mutex was not held, so end() may have been called.
    if (nap(lock) || is_ending()) continue;
    if (!token_.take_in_background_or_park()) {
      background_.wait(lock);
      token_.background_unparks();
      continue;
    }
    lock.unlock();
    bool armed = false;
    auto due = Time::max();
    machine.guarded([&] {
      const bool moved = machine.step();
      armed = !moved && machine.arm() && machine.be_quiet();
      due = machine.wake_at();
      if (!moved) machine.publish();
      if (armed && token_.waiting_drivers() == 0) machine.rests();
    });
    lock.lock();
    static_cast<void>(token_.put_back());
    hand_on(lock);
    if (token_.waiting_drivers() > 0) continue;
    // The last step may have silenced the bell that end() rang.
    if (!armed || is_ending()) continue;
    Sync::writes(&sleeping_until_);
    sleeping_until_ = due;
    lock.unlock();
    machine.sleep(due);
    woken_by_peers_ = !bell_.is_rung();
    lock.lock();
    ++wakeups_;
  }
  auto ending = Life::ending;
  life_.compare_exchange_strong(ending, Life::ended);
  drivers_.notify_all();
}

template <class Sync>
bool TurnsOf<Sync>::begin() {
  auto unborn = Life::unborn;
  if (!life_.compare_exchange_strong(unborn, Life::serving)) return false;
  life_.notify_all();
  return true;
}

template <class Sync>
void TurnsOf<Sync>::end() {
  auto life = life_.load();
  while (life < Life::ending && !life_.compare_exchange_weak(life, Life::ending)) {
  }
  life_.notify_all();
  wake();
}

template <class Sync>
bool TurnsOf<Sync>::ended_by(Time deadline) {
  Lock lock(mutex_);
  background_.notify_one();
  while (life() == Life::ending) {
    if (has_passed(deadline)) {
      life_ = Life::stranded;
      return false;
    }
    drivers_.wait_until(lock, deadline);
  }
  return true;
}

template <class Sync>
bool TurnsOf<Sync>::take_by(Time deadline) {
  Lock lock(mutex_);
  while (!token_.take_or_sleep()) {
    drivers_.wait_until(lock, deadline);
    token_.driver_wakes();
    if (!has_passed(deadline)) continue;
    life_ = Life::stranded;
    return false;
  }
  return true;
}

}  // namespace tutti
