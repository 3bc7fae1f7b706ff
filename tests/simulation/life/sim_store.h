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

/// The job's store in a simulated world: one table, and the way of each call there and back, on
/// which it takes its drawn time. A ghost's call throws Error(unavailable) at once; a call that was
/// under way when its process was killed comes there or not, as drawn.
class SimStore {
 public:
  struct Terms {
    double latency = 50e-6;   // seconds, one way, as a rule
    double longest = 500e-6;  // one way, seldom
    bool polls = false;       // a get() looks again and again, so it may miss a key that goes soon
  };
  SimStore(Fibers& fibers, const Terms& terms, uint64_t seed)
      : fibers_(fibers), terms_(terms), random_(seed, 78) {}
  SimStore(const SimStore&) = delete;

  /// A client for any task.
  std::shared_ptr<Store> client() { return client(Deadline::never()); }
  /// Each way takes so much longer until then.
  void be_slow(Fibers::Time until, double seconds) { slow_until_ = until, slow_by_ = seconds; }
  /// Nobody gets an answer from now on.
  void end();
  /// Is told of each call before it is made; for faults that come at a call.
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
