#include "tests/simulation/life/sim_store.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "tutti/backends/store/store_checks.h"
#include "tutti/base/error.h"

namespace tutti::simulation {

namespace {

// Seconds for which a call waits for its answer after its limit (see Store::until).
constexpr double kGrace = 0.5;
// Seconds between two checks of a store that polls.
constexpr double kFirstLook = 0.0005, kLongestLook = 0.02;

Error is_gone() { return Error(ErrorCode::unavailable, "the store does not answer"); }

}  // namespace

class SimStoreClient final : public Store {
 public:
  SimStoreClient(SimStore& store, Deadline limit) : store_(store), limit_(limit) {}

  void set(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    call([&] {
      store_.values_[key] = value;
      store_.changed(key);
      return 0;
    });
  }
  std::string set_once(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    return call([&] {
      const auto [at, fresh] = store_.values_.try_emplace(key, value);
      if (fresh) store_.changed(key);
      return at->second;
    });
  }
  std::optional<std::string> try_get(const std::string& key) override {
    return call([&]() -> std::optional<std::string> {
      const auto at = store_.values_.find(key);
      if (at == store_.values_.end()) return {};
      return at->second;
    });
  }
  std::string get(const std::string& key, Deadline deadline) override {
    go_there();
    std::optional<std::string> value = await(key, deadline);
    if (fibers().current().is_ghost() || store_.is_gone_) throw is_gone();
    come_back();
    if (!value) throw_store_timeout(key);
    return std::move(*value);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return count(key, [&](int64_t value) { return counter_sum(key, value, amount); });
  }
  int64_t raise(const std::string& key, int64_t least) override {
    return count(key, [&](int64_t value) { return std::max(value, least); });
  }
  void erase(const std::string& key) override {
    call([&] { return store_.values_.erase(key); });
  }
  void erase_all(const std::string& prefix) override {
    check_store_entry(prefix);
    call([&] { return erase_keys_with(prefix, store_.values_), 0; });
  }
  std::shared_ptr<Store> until(Deadline deadline) override {
    return store_.client(deadline.when() < limit_.when() ? deadline : limit_);
  }

 private:
  Fibers& fibers() { return store_.fibers_; }

  template <class Apply>
  std::invoke_result_t<Apply> call(Apply apply) {
    go_there();
    if (fibers().current().is_ghost()) {
      if (store_.random_.chance(500)) apply();
      throw is_gone();
    }
    auto result = apply();
    come_back();
    return result;
  }

  template <class Change>
  int64_t count(const std::string& key, Change change) {
    check_store_entry(key);
    return call([&] {
      const auto found = store_.values_.find(key);
      const int64_t next =
          change(store_counter(key, found == store_.values_.end() ? "" : found->second));
      store_.values_[key] = std::to_string(next);
      store_.changed(key);
      return next;
    });
  }

  void go_there() {
    ++store_.calls_;
    if (!fibers().current().is_ghost() && store_.on_call) store_.on_call(fibers().current());
    if (fibers().current().is_ghost()) throw is_gone();
    travel();
  }
  void come_back() {
    travel();
    if (fibers().current().is_ghost()) throw is_gone();
  }

  // Takes the time of one way of a call. Throws once the limit and the grace period have passed.
  void travel() {
    const auto there = fibers().now() + Fibers::to_duration(store_.delay());
    const auto last = limit_.is_never()
                          ? Fibers::Time::max()
                          : std::max(limit_.when(), fibers().now()) + Fibers::to_duration(kGrace);
    if (there < last && !store_.is_gone_) {
      fibers().sleep_until(there);
      if (!store_.is_gone_ || fibers().current().is_ghost()) return;
    } else if (there >= last) {
      fibers().sleep_until(last);
    }
    throw is_gone();
  }

  std::optional<std::string> await(const std::string& key, Deadline deadline) {
    double pause = kFirstLook;
    while (!fibers().current().is_ghost() && !store_.is_gone_) {
      const auto at = store_.values_.find(key);
      if (at != store_.values_.end()) return at->second;
      if (deadline.passed()) return {};
      if (store_.terms_.polls) {
        fibers().sleep_until(
            std::min(fibers().now() + Fibers::to_duration(pause), deadline.when()));
        pause = std::min(2 * pause, kLongestLook);
        continue;
      }
      SimStore::Waiter waiter{.key = key, .task = &fibers().current()};
      const auto place = store_.waiters_.insert(store_.waiters_.end(), &waiter);
      fibers().wait_until(deadline.when());
      store_.waiters_.erase(place);
      if (waiter.value) return waiter.value;
    }
    return {};
  }

  SimStore& store_;
  const Deadline limit_;
};

std::shared_ptr<Store> SimStore::client(Deadline limit) {
  return std::make_shared<SimStoreClient>(*this, limit);
}

void SimStore::end() {
  is_gone_ = true;
  for (auto* waiter : waiters_) fibers_.wake(*waiter->task);
}

double SimStore::delay() {
  const double usual = terms_.latency * (0.5 + static_cast<double>(random_.below(1000)) / 1000);
  const double seldom =
      random_.chance(50) ? terms_.longest * static_cast<double>(random_.below(1000)) / 1000 : 0;
  return usual + seldom + (fibers_.now() < slow_until_ ? slow_by_ : 0);
}

// The store answers the clients that wait for this key with its current value, even if the key
// changes again.
void SimStore::changed(const std::string& key) {
  for (auto* waiter : waiters_)
    if (waiter->key == key && !waiter->value) {
      waiter->value = values_[key];
      fibers_.wake(*waiter->task);
    }
}

}  // namespace tutti::simulation
