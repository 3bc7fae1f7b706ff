#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include "tutti/backends/store.h"
#include "tutti/backends/store/store_checks.h"
#include "tutti/base/process/fork_guard.h"

namespace tutti {

namespace {

class MemoryStore final : public Store {
 public:
  void set(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }

  std::string set_once(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    const std::lock_guard lock(mutex_);
    const auto [at, fresh] = values_.try_emplace(key, value);
    if (fresh) changed_.notify_all();
    return at->second;
  }

  std::optional<std::string> try_get(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto at = values_.find(key);
    if (at == values_.end()) return {};
    return at->second;
  }

  std::string get(const std::string& key, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    while (true) {
      const auto at = values_.find(key);
      if (at != values_.end()) return at->second;
      if (deadline.passed()) throw_store_timeout(key);
      if (deadline.is_never())
        changed_.wait(lock);
      else
        changed_.wait_until(lock, deadline.when());
    }
  }

  int64_t add(const std::string& key, int64_t amount) override {
    return count(key, [&](int64_t value) { return counter_sum(key, value, amount); });
  }

  int64_t raise(const std::string& key, int64_t least) override {
    return count(key, [&](int64_t value) { return std::max(value, least); });
  }

  void erase(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    values_.erase(key);
  }

  void erase_all(const std::string& prefix) override {
    check_store_entry(prefix);
    const std::lock_guard lock(mutex_);
    erase_keys_with(prefix, values_);
  }

 private:
  template <typename Change>
  int64_t count(const std::string& key, Change change) {
    check_store_entry(key);
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    const int64_t changed = change(store_counter(key, found == values_.end() ? "" : found->second));
    values_[key] = std::to_string(changed);
    changed_.notify_all();
    return changed;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
};

class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  void set(const std::string& key, std::string_view value) override {
    store_->set(prefix_ + key, value);
  }
  std::string set_once(const std::string& key, std::string_view value) override {
    return store_->set_once(prefix_ + key, value);
  }
  std::optional<std::string> try_get(const std::string& key) override {
    return store_->try_get(prefix_ + key);
  }
  std::string get(const std::string& key, Deadline deadline) override {
    return store_->get(prefix_ + key, deadline);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return store_->add(prefix_ + key, amount);
  }
  int64_t raise(const std::string& key, int64_t least) override {
    return store_->raise(prefix_ + key, least);
  }
  void erase(const std::string& key) override { store_->erase(prefix_ + key); }
  void erase_all(const std::string& prefix) override { store_->erase_all(prefix_ + prefix); }
  std::shared_ptr<Store> until(Deadline deadline) override {
    auto limited = store_->until(deadline);
    return limited ? std::make_shared<PrefixStore>(std::move(limited), prefix_) : nullptr;
  }
  std::string local_address() const override { return store_->local_address(); }

 private:
  const std::shared_ptr<Store> store_;
  const std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> make_memory_store() {
  // In a fork the store is not destroyed, because that could wait for sleeping threads of the
  // parent.
  return {new MemoryStore, DeleteWhereMade<MemoryStore>()};
}

std::shared_ptr<Store> bounded(std::shared_ptr<Store> store, Deadline deadline) {
  auto limited = store->until(deadline);
  return limited ? limited : store;
}

std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, std::string prefix) {
  return std::make_shared<PrefixStore>(std::move(store), std::move(prefix));
}

}  // namespace tutti
