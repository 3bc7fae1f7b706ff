#include "tests/explore/run/run.h"

namespace tutti::explore {

void Run::acquire(Mutex& mutex) {
  mutex.owner_ = running_;
  learn(mutex.number());
  receive(mutex.released_, std::memory_order_acquire);
}

void Run::release(Mutex& mutex) {
  learn(mutex.number());
  drain(running_, me().buffer.size());
  const auto part = [&] { return mixed(mutex.number() + 1, mutex.released_.history); };
  memory_ ^= part();
  mutex.owner_ = -1;
  mutex.released_ = send(std::memory_order_release);
  memory_ ^= part();
  wrote(running_);
}

void Run::lock(Mutex& mutex) {
  point();
  check(mutex);
  drain(running_, me().buffer.size());
  if (mutex.owner_ >= 0) {
    if (running_ == 0) return fail("thread 0 would wait for a mutex for ever");
    note("waits for", mutex);
    me().state = State::locking;
    me().at = me().lock = &mutex;
    block();
    me().state = State::ready;
  }
  acquire(mutex);
  note("locks", mutex);
}

bool Run::try_lock(Mutex& mutex) {
  point();
  check(mutex);
  drain(running_, me().buffer.size());
  const bool is_free = mutex.owner_ < 0;
  learn(mutex.number());
  learn(is_free);
  note("try_lock", mutex, is_free);
  if (is_free) acquire(mutex);
  return is_free;
}

void Run::unlock(Mutex& mutex) {
  point();
  check(mutex);
  if (mutex.owner_ != running_) return fail("a thread unlocks what it has not locked");
  note("unlocks", mutex);
  release(mutex);
}

bool Run::wait_until(Condition& condition, Mutex& mutex, Clock::time_point when) {
  point();
  check(condition);
  if (mutex.owner_ != running_) fail("a thread waits with a mutex that it has not locked");
  if (running_ == 0) fail("a wait without another thread");
  note("unlocks and waits on", condition);
  learn(condition.number());
  release(mutex);
  me().state = State::waiting;
  me().at = &condition;
  me().lock = &mutex;
  me().deadline = when;
  block();
  auto& thread = me();
  const bool was_notified = thread.state == State::locking;
  const bool is_timeout = !was_notified && thread.deadline <= now_;
  thread.state = State::ready;
  thread.deadline = Clock::time_point::max();
  acquire(mutex);
  learn(is_timeout);
  note("wakes and locks", condition, {},
       was_notified ? ""
       : is_timeout ? "(timeout)"
                    : "(for no reason)");
  return is_timeout;
}

void Run::set_bell(const Bell& bell, bool is_rung, const Message& message) {
  const auto part = [&] {
    return mixed(mixed(bell.number() + 1, bell.is_rung_), bell.released_.history);
  };
  memory_ ^= part();
  if (bell.is_rung_ != is_rung) wrote(running_);
  bell.is_rung_ = is_rung;
  bell.released_ = message;
  memory_ ^= part();
}

void Run::ring(const Bell& bell) {
  point();
  check(bell);
  drain(running_, me().buffer.size());
  learn(bell.number());
  auto message = send(std::memory_order_release);
  message.clock.join(bell.released_.clock);
  message.history = mixed(message.history, bell.released_.history);
  note("rings", bell);
  set_bell(bell, true, message);
}

void Run::silence(const Bell& bell) {
  point();
  check(bell);
  drain(running_, me().buffer.size());
  learn(bell.number());
  receive(bell.released_, std::memory_order_acquire);
  note("silences", bell, bell.is_rung_);
  set_bell(bell, false, bell.released_);
}

bool Run::wait(const Bell& bell, std::chrono::microseconds most) {
  point();
  check(bell);
  drain(running_, me().buffer.size());
  learn(bell.number());
  if (!bell.is_rung_ && most.count() > 0) {
    if (running_ == 0) fail("a wait without another thread");
    note("listens to", bell);
    me().state = State::listening;
    me().at = &bell;
    if (most != std::chrono::microseconds::max()) me().deadline = now_ + most;
    block();
    me().state = State::ready;
    me().deadline = Clock::time_point::max();
  }
  learn(bell.is_rung_);
  if (bell.is_rung_) receive(bell.released_, std::memory_order_acquire);
  note("hears", bell, bell.is_rung_);
  return bell.is_rung_;
}

// If the store buffer is empty, other threads cannot notice the time of a fence. So it needs no
// choice.
void Run::fence() {
  if (!me().buffer.empty()) {
    point();
    drain(running_, me().buffer.size());
  }
  auto& thread = me();
  thread.clock.join(thread.unfenced);
  learn(1);
  thread.fence = send(std::memory_order_seq_cst);
  note("fence");
}

}  // namespace tutti::explore
