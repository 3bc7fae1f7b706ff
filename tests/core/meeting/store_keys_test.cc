// The keys that ranks leave in the job's store while they connect are erased once they are
// connected. A job that splits, shrinks and makes communicators for weeks keeps no more keys than a
// new one.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/forwarding_store.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/core/communicator.h"
#include "tutti/core/watch/death.h"

namespace tutti {
namespace {

// Remembers every key that was ever written. Asks the store itself which of them still exist.
class WatchedKeys final : public test::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  std::set<std::string> present() {
    const std::lock_guard lock(mutex_);
    std::set<std::string> keys;
    for (const auto& key : written_)
      if (rest().try_get(key)) keys.insert(key);
    return keys;
  }

  void set(const std::string& key, std::string_view value) override {
    rest().set(note(key), value);
  }
  std::string set_once(const std::string& key, std::string_view value) override {
    return rest().set_once(note(key), value);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return rest().add(note(key), amount);
  }
  int64_t raise(const std::string& key, int64_t least) override {
    return rest().raise(note(key), least);
  }

 private:
  const std::string& note(const std::string& key) {
    const std::lock_guard lock(mutex_);
    written_.insert(key);
    return key;
  }

  std::mutex mutex_;
  std::set<std::string> written_;  // guarded by mutex_
};

// The kinds of store in which a job may meet.
struct Kind {
  const char* name;
  std::function<std::shared_ptr<Store>(const std::string& folder)> make;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

std::shared_ptr<Store> make_served_store(const std::string&) {
  auto server = std::make_shared<TcpStoreServer>("127.0.0.1", 0, "secret");
  auto client = connect_tcp_store("127.0.0.1", server->port(), "secret", Deadline::after(20));
  auto* store = client.get();
  return {store, [server, client](Store*) {}};
}

constexpr int kRanks = 3;
// The number of keys that the job itself keeps, however long it runs.
constexpr size_t kMostKeys = 3;

class StoreKeys : public testing::TestWithParam<Kind> {
 protected:
  Options options(int rank, int size = kRanks) {
    auto options = Options::thread_rank(rank, size, keys_);
    options.backend = "memory";
    options.peer_timeout = 1;  // the time for which a survivor waits for rank 1, which does not
                               // answer
    return options;
  }

  // Runs `body` on each rank with a communicator of all ranks.
  void run(const std::function<void(std::unique_ptr<Communicator> comm)>& body) {
    on_all([&](int rank) { body(Communicator::create(options(rank))); });
  }

  static void on_all(const std::function<void(int rank)>& body, int size = kRanks) {
    test::on_threads(0, size, body);
  }

  void expect_few_keys(size_t most = kMostKeys) {
    const auto present = keys_->present();
    EXPECT_LE(present.size(), most) << testing::PrintToString(present);
  }

  const test::ScratchFolder folder_;
  const std::shared_ptr<WatchedKeys> keys_ =
      std::make_shared<WatchedKeys>(GetParam().make(folder_.path()));
};
INSTANTIATE_TEST_SUITE_P(
    Of, StoreKeys,
    testing::Values(Kind{"memory", [](const auto&) { return make_memory_store(); }},
                    Kind{"file", make_file_store}, Kind{"tcp", make_served_store}),
    [](const auto& info) { return info.param.name; });

TEST_P(StoreKeys, OfSplitsGo) {
  run([](auto comm) {
    for (int i = 0; i < test::repetitions(200); ++i) {
      // In turn, one rank takes part in the split without joining a part.
      const int color = i % 5 == comm->rank() ? -1 : i % 2 == 0 ? 0 : comm->rank() % 2;
      const auto part = comm->split(color);
      EXPECT_EQ(part == nullptr, color < 0);
    }
  });
  expect_few_keys();
}

// Each communicator is split off the one before. A key with the names of all of them would become
// too long.
TEST_P(StoreKeys, OfSplitsOfSplitsGo) {
  run([](auto comm) {
    for (int i = 0; i < test::repetitions(100); ++i) comm = comm->split(0);
    float one = 1;
    comm->allreduce_blocking("sum", TensorView(&one, Shape{1}, DataType::f32), ReduceOp::sum);
    EXPECT_EQ(one, kRanks);
  });
  expect_few_keys();
}

// A rank that was left out may come at any time, and must not form a job of its own.
TEST_P(StoreKeys, OfAShrinkSayForGoodWhoWasLeftOut) {
  std::promise<void> shrunk;
  std::atomic<int> done = 0;
  run([&](auto comm) {
    if (comm->rank() == 1) {
      shrunk.get_future().wait();
      test::expect_error(ErrorCode::peer_silent, "is not among the survivors (ranks 0 2)",
                         [&] { comm->shrink(); });
      return;
    }
    const auto rest = comm->shrink();
    EXPECT_EQ(rest->size(), 2);
    if (++done == 2) shrunk.set_value();
  });
  const auto before = keys_->present();
  for (const auto& key : before) EXPECT_EQ(key.find("/place"), key.npos) << key;
  // the list of members, and the vote of the rank that came too late
  expect_few_keys(kMostKeys + 3);
}

// Three threads make communicators of all ranks at the same time, and may overtake each other.
TEST_P(StoreKeys, OfCommunicatorsThatAreMadeAtOnceGo) {
  for (int i = 0; i < 10; ++i) {
    test::on_threads(0, 3, [&](int) { run([](auto) {}); });
  }
  run([](auto) {});
  expect_few_keys();
}

// The keys of the last few failed attempts stay, for ranks that come late.
TEST_P(StoreKeys, OfAttemptsThatFailedAreBounded) {
  size_t after_some = 0;
  for (int i = 0; i < 60; ++i) {
    auto early = options(0, 2);
    early.connect_timeout = 0.01;
    EXPECT_THROW(Communicator::create(early), Error);
    if (i == 20) after_some = keys_->present().size();
  }
  EXPECT_LE(keys_->present().size(), after_some);
  // Rank 1 comes at last. It does not see the attempts that failed only because it was missing.
  on_all([&](int rank) { Communicator::create(options(rank, 2)); }, 2);
  expect_few_keys();
}

// Deaths that were known when an attempt failed do not fail the later attempts, although the store
// has forgotten the failed one.
TEST_P(StoreKeys, DeathsThatAreOverStayOver) {
  append_death(*keys_, {.who = {.rank = 1}, .pid = 4711, .signal = 9, .host = "somewhere"});
  const auto rank_with = [&](int rank) {
    auto one = options(rank);
    one.incarnation = rank == 1 ? 1 : 0;
    return one;
  };
  for (const int rank : {0, 2}) EXPECT_THROW(Communicator::create(rank_with(rank)), Error);
  for (int i = 0; i < 3; ++i) on_all([&](int rank) { Communicator::create(rank_with(rank)); });
  auto zero = std::async(std::launch::async, [&] { Communicator::create(rank_with(0)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  auto two = std::async(std::launch::async, [&] { Communicator::create(rank_with(2)); });
  Communicator::create(rank_with(1));
  zero.get();
  two.get();
}

}  // namespace
}  // namespace tutti
