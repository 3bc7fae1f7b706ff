// Connects the engine to TurnsOf, which runs it on a thread that waits for its Work, or on the
// background thread.

#include <sched.h>

#include "tutti/base/process/pause.h"
#include "tutti/core/engine/engine.h"

namespace tutti {

/// The interface through which TurnsOf runs the engine.
class Engine::Machine {
 public:
  explicit Machine(Engine& engine) : engine_(engine) {}

  template <class Function>
  bool guarded(Function&& function) {
    return engine_.guarded(std::forward<Function>(function));
  }
  bool step() { return engine_.step(); }
  bool arm() { return engine_.node_->arm(); }
  Clock::time_point wake_at() const { return engine_.node_->wake_at(); }
  bool pending() const { return engine_.pending(); }
  bool can_go_on() const { return engine_.node_->can_go_on(); }
  void publish() { engine_.publish_statistics(); }
  bool be_quiet() {
    const auto& scheduler = engine_.node_->scheduler();
    return engine_.hand_over_.be_quiet(scheduler.bytes_awaited(), scheduler.plan_id());
  }
  void rests() { engine_.options_.observe("idle"); }
  void sleep(Clock::time_point until) { engine_.sleep(until); }

 protected:
  Engine& engine_;
};

/// The interface for a thread that waits for a Work. It adds the waiting time to the statistics.
class Engine::DrivenMachine : public Machine {
 public:
  using Machine::Machine;

  void begin() {
    ++engine_.counting_.caller_runs;
    idle_rounds_ = 0;
    account_ = {Clock::now(), nullptr};
  }
  bool step() {
    const bool moved = engine_.step();
    engine_.charge(account_, moved, engine_.node_->scheduler().lacks_ranks());
    if (moved) idle_rounds_ = 0;
    return moved;
  }
  void rest(Clock::time_point until) { engine_.rest(Deadline::at(until), idle_rounds_); }

 private:
  int idle_rounds_ = 0;
  WaitAccount account_{};
};

void Engine::drive(WorkState& work, Milestone milestone, Deadline deadline) {
  check_not_forked(work.name());
  const auto begin = Clock::now();
  work.waiting_since.store(begin.time_since_epoch().count());
  work.waiters.fetch_add(1);
  DrivenMachine machine(*this);
  turns_.drive(
      machine, [&] { return work.has_come_to(milestone); }, deadline.when());
  work.waiters.fetch_sub(1);
  count_wait(begin);
}

void Engine::background() {
  Machine machine(*this);
  turns_.serve(machine);
}

void Engine::leave_to_background() {
  Machine machine(*this);
  turns_.leave(machine);
}

void Engine::count_wait(Clock::time_point begin) {
  tally_.add([&](Statistics& published) {
    published.wait_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  });
}

// Adds the time since the last call to one of the counters. If this thread rested in that time, the
// last call chose the counter. Otherwise the result of this step determines it.
void Engine::charge(WaitAccount& account, bool moved, bool lacks_ranks) {
  const auto now = Clock::now();
  auto* const waits_for = lacks_ranks ? &counting_.skew_seconds : &counting_.exposed_seconds;
  auto* to = account.rested_for;
  if (to == nullptr) to = moved ? &counting_.exposed_seconds : waits_for;
  *to += std::chrono::duration<double>(now - account.last).count();
  account.last = now;
  account.rested_for = moved ? nullptr : waits_for;
}

// Spins once, with a yield from time to time. The system may have put the awaited rank on the same
// core. As long as both threads seem busy, the system moves neither. Without yields an operation of
// 0.3 ms took 5 ms.
void Engine::spin(int round, int looks_between_yields) {
  if (round % looks_between_yields == looks_between_yields - 1)
    ::sched_yield();
  else
    pause_core();
}

void Engine::sleep(Clock::time_point until) {
  poller_.wait(Deadline::at(until).poll_milliseconds());
  turns_.bell().slept();
}

void Engine::rest(Deadline deadline, int& idle_rounds) {
  if (idle_rounds < spin_rounds_ && !backend_->works_elsewhere()) {
    constexpr int kLooksBetweenYields = 16;  // each round is a whole step
    spin(idle_rounds++, kLooksBetweenYields);
    return;
  }
  // Ranks that share cores yield before they sleep, because sleeping and waking cost both sides
  // more.
  if (spin_rounds_ == 0 && idle_rounds < kYields && !backend_->works_elsewhere()) {
    ++idle_rounds;
    ::sched_yield();
    return;
  }
  const auto due = std::min(node_->wake_at_for_driver(), deadline.when());
  if (!node_->arm() || must_tell_of_close()) return;
  sleep(due);
  idle_rounds = spin_rounds_ / 2;
}

}  // namespace tutti
