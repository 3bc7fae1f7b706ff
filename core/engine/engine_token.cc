// Which thread is the engine: one that waits for its Work, or the background thread.

#include <sched.h>

#include "tutti/base/process/pause.h"
#include "tutti/core/engine/engine.h"

namespace tutti {

void Engine::drive(WorkState& work, Milestone milestone, Deadline deadline) {
  check_not_forked(work.name());
  const auto begin = Clock::now();
  work.waiting_since.store(begin.time_since_epoch().count());
  work.waiters.fetch_add(1);
  {
    std::unique_lock lock(token_mutex_);
    while (!work.has_come_to(milestone) && !deadline.passed()) {
      if (claims_ > 0) {
        // A blocking call of another thread needs the token itself; it drives this Work too.
        token_.step_aside();
        hand_on(lock);
      } else if (token_.take_or_sleep()) {
        lock.unlock();
        guarded([&] { drive_until(work, milestone, deadline); });
        lock.lock();
        static_cast<void>(token_.put_back());
        continue;
      }
      // The holder may sleep in the poller, and not know of what this thread submitted quietly.
      wake();
      if (deadline.is_never())
        drivers_.wait(lock);
      else
        drivers_.wait_until(lock, deadline.when());
      token_.driver_wakes();
    }
    hand_on(lock);
  }
  work.waiters.fetch_sub(1);
  count_wait(begin);
}

void Engine::count_wait(Clock::time_point begin) {
  const std::lock_guard lock(statistics_mutex_);
  published_.wait_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

// The time since the last call goes to what this thread rested for before this step, or, if it did
// not rest, to what the step did.
void Engine::charge(WaitAccount& account, bool moved, bool lacks_ranks) {
  const auto now = Clock::now();
  auto* const waits_for = lacks_ranks ? &counting_.skew_seconds : &counting_.exposed_seconds;
  auto* to = account.rested_for;
  if (to == nullptr) to = moved ? &counting_.exposed_seconds : waits_for;
  *to += std::chrono::duration<double>(now - account.last).count();
  account.last = now;
  account.rested_for = moved ? nullptr : waits_for;
}

std::shared_ptr<Engine> Engine::take_token() {
  if (token_.take()) return nullptr;
  auto self = shared_from_this();
  std::unique_lock lock(token_mutex_);
  ++claims_;
  while (!token_.take_or_sleep()) {
    // The holder may sleep in the poller.
    wake();
    drivers_.wait(lock);
    token_.driver_wakes();
  }
  --claims_;
  return self;
}

// Either way close() cannot have the token before this thread is done with the engine.
void Engine::put_token_back() {
  if (token_.put_back_unwanted()) return;
  std::unique_lock lock(token_mutex_);
  static_cast<void>(token_.put_back());
  hand_on(lock);
}

void Engine::hand_on(const std::unique_lock<std::mutex>&) {
  switch (token_.next()) {
    case Token::Wake::a_driver:
      drivers_.notify_all();
      break;
    case Token::Wake::the_background:
      background_.notify_one();
      break;
    case Token::Wake::no_thread:
      break;
  }
}

void Engine::drive_until(const WorkState& work, Milestone milestone, Deadline deadline) {
  ++counting_.caller_runs;
  int idle_rounds = 0;
  WaitAccount account{Clock::now(), nullptr};
  while (!work.has_come_to(milestone) && !deadline.passed() &&
         claims_.load(std::memory_order_relaxed) == 0) {
    const bool moved = step();
    charge(account, moved, node_->scheduler().lacks_ranks());
    if (moved) {
      idle_rounds = 0;
      continue;
    }
    // By another thread's callback; or a thread claims the token, and its ring was silenced here.
    if (work.has_come_to(milestone) || claims_.load(std::memory_order_relaxed) > 0) break;
    rest(deadline, idle_rounds);
  }
  publish_statistics();
  leave_to_background();
}

// The background thread sleeps on what it armed before this thread drove; if that is not all that
// may come for this rank, or is due later than what this thread knows of, it must arm again. Where
// it naps, it will, unless something is pending that may not wait so long.
void Engine::leave_to_background() {
  const bool goes_on = node_->can_go_on();
  const bool idle = !pending() && !goes_on;
  {
    const std::lock_guard lock(token_mutex_);
    left_idle_at_ = idle ? Clock::now() : Clock::time_point();
    if (naps_ && idle) return;
  }
  const bool armed = node_->arm();
  const auto due = node_->wake_at();
  const std::lock_guard lock(token_mutex_);
  // A step of this thread may have silenced the bell that close() rang.
  if (!armed || goes_on || closing_ || due < sleeping_until_ || (naps_ && !idle)) wake();
}

// The system may have put the rank that is waited for on the same core, and leaves it there while
// both seem busy: what takes 0.3 ms took 5 ms.
void Engine::spin(int round, int looks_between_yields) {
  if (round % looks_between_yields == looks_between_yields - 1)
    ::sched_yield();
  else
    pause_core();
}

void Engine::sleep(int milliseconds) {
  poller_.wait(milliseconds);
  bell_.slept();
}

void Engine::rest(Deadline deadline, int& idle_rounds) {
  if (idle_rounds < spin_rounds_ && !backend_->works_elsewhere()) {
    constexpr int kLooksBetweenYields = 16;  // each is a whole step
    spin(idle_rounds++, kLooksBetweenYields);
    return;
  }
  // Ranks that share cores give theirs away first: to sleep and to be woken costs both sides more.
  if (spin_rounds_ == 0 && idle_rounds < kYields && !backend_->works_elsewhere()) {
    ++idle_rounds;
    ::sched_yield();
    return;
  }
  const auto due = std::min(node_->wake_at_for_driver(), deadline.when());
  if (!node_->arm() || must_tell_of_close()) return;
  sleep(Deadline::at(due).poll_milliseconds());
  idle_rounds = spin_rounds_ / 2;
}

bool Engine::nap(std::unique_lock<std::mutex>& lock) {
  if (!woken_by_peers_ || Clock::now() - left_idle_at_ >= kNap) return false;
  naps_ = true;
  lock.unlock();
  woken_by_peers_ = !bell_.wait(kNap);
  lock.lock();
  naps_ = false;
  return woken_by_peers_;
}

void Engine::background() {
  std::unique_lock lock(token_mutex_);
  while (!closing_) {
    if (nap(lock)) continue;
    if (!token_.take_in_background_or_park()) {
      background_.wait(lock);
      token_.background_unparks();
      continue;
    }
    lock.unlock();
    bool armed = false;
    auto due = Clock::time_point::max();
    guarded([&] {
      const bool moved = step();
      armed = !moved && node_->arm() && may_be_quiet();
      due = node_->wake_at();
      if (!moved) publish_statistics();
      if (armed && token_.waiting_drivers() == 0) options_.observe("idle");
    });
    lock.lock();
    static_cast<void>(token_.put_back());
    hand_on(lock);
    if (token_.waiting_drivers() > 0) continue;
    // The last step may have silenced the bell that close() rang.
    if (!armed || closing_) continue;
    sleeping_until_ = due;
    lock.unlock();
    sleep(Deadline::at(due).poll_milliseconds());
    woken_by_peers_ = !bell_.is_rung();
    lock.lock();
    ++wakeups_;
  }
  background_is_over_ = true;
  background_.notify_all();
}

}  // namespace tutti
