#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::explore {

/// The limits of an exploration.
struct Bounds {
  /// The highest cost of a run. These cost 1 each: a preemption, a delayed store, a timeout while
  /// other threads can run, a spurious wake-up, and a pause that ends without a write.
  int cost = 2;
  /// A run with more operations is a failure.
  int steps = 10000;
  /// After this many runs the explorer gives up, and the outcome is not complete.
  uint64_t runs = 5'000'000;
  /// If true, the continuations of a state are tried only the first time that a run reaches it.
  /// Only a test of the explorer sets false.
  bool skips_known_states = true;
};

/// Returns the bounds of the daily tests, with cost 2. Builds with all tests (`./dev test --full`)
/// have cost 3.
Bounds daily();

struct Outcome {
  uint64_t runs = 0;
  bool complete = false;  // every run within the bounds was made, and none failed
  std::string failure;    // empty if no run failed
  std::string trace;      // of the failing run: a line for each operation
};

/// The threads of one run, as `build` makes them. Bodies share objects by capturing them; `build`
/// must make these again for each run. A model has at most seven threads.
class Model {
 public:
  struct Thread {
    std::string name;
    std::function<void()> body;
  };

  void thread(std::string name, std::function<void()> body) {
    threads_.push_back({std::move(name), std::move(body)});
  }
  /// `check` runs once all threads have ended, and sees all their writes.
  void finally(std::function<void()> check) { check_ = std::move(check); }

  const std::vector<Thread>& threads() const { return threads_; }
  const std::function<void()>& check() const { return check_; }

 private:
  std::vector<Thread> threads_;
  std::function<void()> check_;
};

/// Makes every run of the model within the bounds, the cheapest ones first, until one fails. The
/// threads of a model take turns in the calling thread. A thread must do the same whenever it reads
/// the same. So it may take time and random choices only from the policy Explored. All threads
/// share thread_local variables.
Outcome explore(const std::function<void(Model&)>& build, Bounds bounds = daily());

/// Fails this run if `holds` is false. A thread of a model or its final check calls it.
void require(bool holds, const char* text);

/// Traces print this name instead of a number. `object` belongs to the policy or is plain data.
void name(const void* object, const char* name);

}  // namespace tutti::explore
