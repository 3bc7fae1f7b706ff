#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::explore {

/// These say how far the explorer goes.
struct Bounds {
  /// The most that one run may cost: each preemption, delayed store, timeout that is taken while
  /// others can run, spurious wake-up, and pause that nobody's write ends costs 1.
  int cost = 2;
  /// A run of more operations is a failure.
  int steps = 10000;
  /// After so many runs the explorer gives up; the outcome is not complete then.
  uint64_t runs = 5'000'000;
  /// Whether what follows a state is tried only the first time that a run comes to it. A test of
  /// the explorer says no.
  bool skips_known_states = true;
};

/// The bounds of every day: cost 2. Builds with all tests (`./dev test --full`) have cost 3.
Bounds daily();

struct Outcome {
  uint64_t runs = 0;
  bool complete = false;  // every run within the bounds was made, and none failed
  std::string failure;    // empty: none was found
  std::string trace;      // of the run that failed: a line for each operation
};

/// The threads of one run, as `build` makes them. A body shares what it needs with the others by
/// what it captures; that must be made anew for each run. At most seven threads.
class Model {
 public:
  struct Thread {
    std::string name;
    std::function<void()> body;
  };

  void thread(std::string name, std::function<void()> body) {
    threads_.push_back({std::move(name), std::move(body)});
  }
  /// `check` runs once all threads are over, after everything that they have done.
  void finally(std::function<void()> check) { check_ = std::move(check); }

  const std::vector<Thread>& threads() const { return threads_; }
  const std::function<void()>& check() const { return check_; }

 private:
  std::vector<Thread> threads_;
  std::function<void()> check_;
};

/// Makes every run of the model within the bounds, the cheapest ones first, until one fails. The
/// threads of a model run one at a time, in the calling thread. They must do the same whenever they
/// read the same, so they take neither time nor chance but from the policy Explored. thread_local
/// variables are common to all of them.
Outcome explore(const std::function<void(Model&)>& build, Bounds bounds = daily());

/// Fails this run unless it holds: in a thread of a model or in its last check.
void require(bool holds, const char* text);

/// Traces say this name in place of a number. `object` is of the policy, or plain data.
void name(const void* object, const char* name);

}  // namespace tutti::explore
