#include "tutti/core/watch/watched_store.h"

#include <mutex>

#include "tutti/base/error.h"

namespace tutti {

namespace {

class WatchedStore final : public Store {
 public:
  WatchedStore(std::shared_ptr<Store> store, std::function<void()> look)
      : store_(std::move(store)), look_(std::move(look)) {}

  void set(const std::string& key, std::string_view value) override { store_->set(key, value); }
  std::string set_once(const std::string& key, std::string_view value) override {
    return store_->set_once(key, value);
  }
  std::optional<std::string> try_get(const std::string& key) override {
    check();
    return store_->try_get(key);
  }
  std::string get(const std::string& key, Deadline deadline) override {
    while (true) {
      try {
        const auto slice = Deadline::after(kSlice);
        return store_->get(key, slice.when() < deadline.when() ? slice : deadline);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::timeout) throw;
        check();  // before the deadline check, as a caller may wait for less than one slice
        if (deadline.passed()) throw;
      }
    }
  }
  int64_t add(const std::string& key, int64_t amount) override { return store_->add(key, amount); }
  int64_t raise(const std::string& key, int64_t least) override {
    return store_->raise(key, least);
  }
  void erase(const std::string& key) override { store_->erase(key); }
  void erase_all(const std::string& prefix) override { store_->erase_all(prefix); }
  std::string local_address() const override { return store_->local_address(); }

 private:
  static constexpr double kSlice = 0.1;  // seconds between two checks

  // Calls look_ without the lock, because look_ accesses the store, which may be slow.
  void check() {
    std::unique_lock lock(mutex_);
    if (is_looking_ || !next_look_.passed()) return;
    next_look_ = Deadline::after(kSlice);
    is_looking_ = true;
    lock.unlock();
    try {
      look_();
    } catch (...) {
      end_look();
      throw;
    }
    end_look();
  }

  void end_look() {
    const std::lock_guard lock(mutex_);
    is_looking_ = false;
  }

  const std::shared_ptr<Store> store_;
  const std::function<void()> look_;
  std::mutex mutex_;  // guards the members below
  bool is_looking_ = false;
  Deadline next_look_ = Deadline::after(kSlice);
};

}  // namespace

std::shared_ptr<Store> make_watched_store(std::shared_ptr<Store> store,
                                          std::function<void()> look) {
  return std::make_shared<WatchedStore>(std::move(store), std::move(look));
}

}  // namespace tutti
