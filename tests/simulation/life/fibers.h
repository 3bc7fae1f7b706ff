#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/explore/run/fiber.h"
#include "tests/simulation/random.h"
#include "tutti/base/clock.h"

namespace tutti::simulation {

/// Threads (fibers) that take turns on one thread of the operating system, under virtual time. A
/// thread that has nothing to do before a later time gives the turn to the thread with the earliest
/// time; ties are drawn. A thread may wait or sleep anywhere except under a std::mutex, which
/// aborts.
class Fibers final : public Clock::Source {
 public:
  using Time = Clock::time_point;

  /// One fiber.
  class Task {
   public:
    bool is_over() const { return is_over_; }
    /// A ghost is a killed task that runs on to its end without an effect: nothing waits for it,
    /// its sleeps take no time, and its calls of the store fail (see sim_store.h).
    bool is_ghost() const { return is_ghost_; }

   private:
    friend class Fibers;
    std::function<void()> body_;
    std::unique_ptr<explore::Fiber> fiber_;
    uint64_t number_ = 0;
    Time wakes_at_{};    // its key in the queue
    uint64_t tie_ = 0;   // part of the key
    Time held_until_{};  // it does nothing before this time
    Time ghost_time_{};  // the time that now() returns to a ghost
    bool is_queued_ = false, is_woken_ = false, is_over_ = false, is_ghost_ = false;
    int sleeps_ = 0;  // count of a ghost's sleeps
  };

  explicit Fibers(uint64_t seed);
  ~Fibers() override;

  Task& start(std::function<void()> body, Time when);
  /// Runs until all tasks are over. Throws std::runtime_error after `most_turns` turns, or if every
  /// remaining task waits for a wake() that no task makes.
  void run(int64_t most_turns);

  Time now() noexcept override;
  void sleep_until(Time when) override;
  void sleep(double seconds) { sleep_until(now() + to_duration(seconds)); }
  /// The running task waits for a wake(). Returns false if the time `when` came first.
  bool wait_until(Time when);
  void wake(Task& task);
  /// The task does nothing from now until `until`, like a stopped process.
  void hold(Task& task, Time until);
  /// The task stops waiting and becomes a ghost.
  void kill(Task& task);
  Task& current() { return *current_; }

  static Clock::duration to_duration(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

 private:
  static void enter();
  void queue(Task& task, Time when);
  void unqueue(Task& task);
  void give_turn();

  Random random_;
  std::vector<std::unique_ptr<Task>> tasks_;
  std::set<std::tuple<Time, uint64_t, Task*>> queue_;
  explore::Fiber outside_;
  Task* current_ = nullptr;
  Time now_;
  Clock::Source* before_;
};

}  // namespace tutti::simulation
