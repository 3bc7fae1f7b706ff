#include "tutti/core/watch/watched_store.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/core/watch/death.h"

namespace tutti {

namespace {

class WatchedStore final : public Store {
 public:
  WatchedStore(std::shared_ptr<Store> store, std::shared_ptr<Store> deaths,
               std::vector<int> world_ranks)
      : store_(std::move(store)),
        deaths_(std::move(deaths)),
        world_ranks_(std::move(world_ranks)) {}

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
        if (error.code() != ErrorCode::timeout || deadline.passed()) throw;
      }
      check();
    }
  }
  int64_t add(const std::string& key, int64_t amount) override { return store_->add(key, amount); }
  void erase(const std::string& key) override { store_->erase(key); }
  std::string local_address() const override { return store_->local_address(); }

 private:
  static constexpr double kSlice = 0.1;  // seconds between looks at the deaths

  void check() {
    const std::lock_guard lock(mutex_);
    if (!next_look_.passed()) return;
    next_look_ = Deadline::after(kSlice);
    for (size_t rank = 0; rank < world_ranks_.size(); ++rank) {
      const auto text = deaths_->try_get(death_key(world_ranks_[rank]));
      const auto death = text ? decode_death(*text) : std::nullopt;
      // A rank that ended well may have done all that this one still needs it for.
      if (!death || (death->signal == 0 && death->code == 0)) continue;
      throw Error(
          ErrorCode::peer_lost,
          fmt::format("rank {} (host {}, pid {}) {} while the ranks were connecting. Make a new "
                      "Communicator to go on with {} ranks.",
                      rank, death->host, death->pid, describe_death(*death),
                      world_ranks_.size() - 1))
          .with_rank(static_cast<int>(rank));
    }
  }

  const std::shared_ptr<Store> store_;
  const std::shared_ptr<Store> deaths_;
  const std::vector<int> world_ranks_;
  std::mutex mutex_;  // guards next_look_
  Deadline next_look_ = Deadline::after(kSlice);
};

}  // namespace

std::shared_ptr<Store> make_watched_store(std::shared_ptr<Store> store,
                                          std::shared_ptr<Store> deaths,
                                          std::vector<int> world_ranks) {
  return std::make_shared<WatchedStore>(std::move(store), std::move(deaths),
                                        std::move(world_ranks));
}

}  // namespace tutti
