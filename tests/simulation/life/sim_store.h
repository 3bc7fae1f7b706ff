#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "tests/simulation/life/fibers.h"
#include "tests/simulation/random.h"
#include "tutti/backends/store.h"

namespace tutti::simulation {

/// The job's store in a simulated world: one table, and a drawn travel time for each call and
/// answer. A ghost's call (see fibers.h) throws Error(unavailable) immediately. If a process is
/// killed during a call, it is drawn whether the call reaches the store.
class SimStore {
 public:
  struct Terms {
    double latency = 50e-6;   // usual latency in seconds, one way
    double longest = 500e-6;  // rare latency, one way
    bool polls = false;       // a get() polls, so it may miss a key that is soon erased
  };
  SimStore(Fibers& fibers, const Terms& terms, uint64_t seed)
      : fibers_(fibers), terms_(terms), random_(seed, 78) {}
  SimStore(const SimStore&) = delete;

  /// Returns a client for any task.
  std::shared_ptr<Store> client() { return client(Deadline::never()); }
  /// Until then, each way of a call takes `seconds` more.
  void be_slow(Fibers::Time until, double seconds) { slow_until_ = until, slow_by_ = seconds; }
  /// From now on the store does not answer.
  void end();
  /// Called before each call, for faults that come at a call.
  std::function<void(Fibers::Task&)> on_call;

  const std::map<std::string, std::string>& values() const { return values_; }
  int64_t calls() const { return calls_; }

 private:
  friend class SimStoreClient;
  struct Waiter {
    std::string key;
    Fibers::Task* task = nullptr;
    std::optional<std::string> value = {};
  };
  std::shared_ptr<Store> client(Deadline limit);
  double delay();
  void changed(const std::string& key);

  Fibers& fibers_;
  const Terms terms_;
  Random random_;
  std::map<std::string, std::string> values_;
  std::list<Waiter*> waiters_;
  Fibers::Time slow_until_{};
  double slow_by_ = 0;
  bool is_gone_ = false;
  int64_t calls_ = 0;
};

}  // namespace tutti::simulation
