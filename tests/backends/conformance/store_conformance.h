#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/backends/support/world.h"
#include "tutti/backends/store.h"
#include "tutti/base/error.h"

// The conformance suite of Store.

namespace tutti::test {

struct StoreMaker {
  std::string name;
  // Makes a store; each call of the result opens a client.
  std::function<std::function<std::shared_ptr<Store>()>()> make;
};

inline void PrintTo(const StoreMaker& maker, std::ostream* out) { *out << maker.name; }

class StoreConformance : public testing::TestWithParam<StoreMaker> {
 protected:
  static ErrorCode code_of(const std::function<void()>& call, std::string* text = nullptr) {
    try {
      call();
    } catch (const Error& error) {
      if (text) *text = error.what();
      return error.code();
    }
    return ErrorCode{};
  }

  std::function<std::shared_ptr<Store>()> client_ = GetParam().make();
  std::shared_ptr<Store> store_ = client_();
};

TEST_P(StoreConformance, SetsGetsAndErases) {
  EXPECT_FALSE(store_->try_get("a"));
  store_->set("a", "1");
  EXPECT_EQ(store_->try_get("a"), "1");
  store_->set("a", "22");
  EXPECT_EQ(store_->get("a", Deadline::after(60)), "22");
  store_->set("empty", "");
  EXPECT_EQ(store_->try_get("empty"), "");
  EXPECT_EQ(client_()->try_get("a"), "22");
  store_->erase("a");
  store_->erase("a");
  EXPECT_FALSE(store_->try_get("a"));
}

TEST_P(StoreConformance, KeysAndValuesAreBytes) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const std::vector<std::string> keys = {all,
                                         "a/b/../c",
                                         ".",
                                         "..",
                                         "/",
                                         "%2f",
                                         "k",
                                         std::string(1024, 'x'),
                                         std::string(1023, 'x') + "y",
                                         std::string("nul\0nul", 7)};
  for (const auto& key : keys) store_->set(key, key + all);
  for (const auto& key : keys) EXPECT_EQ(store_->try_get(key), key + all);
  const std::string large(1 << 20, '\xee');
  store_->set("large", large);
  EXPECT_TRUE(store_->get("large", Deadline::after(60)) == large);
}

// Covers stores that turn keys into file names, which are at most 255 bytes long.
TEST_P(StoreConformance, TakesKeysOfEveryLength) {
  for (size_t length = 190; length < 270; ++length) {
    const std::string key(length, 'x');
    store_->set(key, std::to_string(length));
    EXPECT_EQ(store_->try_get(key), std::to_string(length));
    EXPECT_EQ(store_->add(key + "+", 3), 3) << length;
  }
}

TEST_P(StoreConformance, RefusesWhatIsTooLong) {
  EXPECT_EQ(code_of([&] { store_->set(std::string(1025, 'k'), ""); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { store_->set("", ""); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { store_->set("k", std::string((1 << 20) + 1, 'v')); }),
            ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { store_->set_once("k", std::string((1 << 20) + 1, 'v')); }),
            ErrorCode::invalid_argument);
  EXPECT_FALSE(store_->try_get("k"));
}

TEST_P(StoreConformance, GetWaitsAndNamesTheKeyWhenInVain) {
  std::thread later([this] {
    const auto store = client_();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    store->set("late", "there");
  });
  EXPECT_EQ(store_->get("late", Deadline::after(20)), "there");
  later.join();
  std::string text;
  const auto before = Clock::now();
  EXPECT_EQ(code_of([&] { store_->get("never", Deadline::after(0.1)); }, &text),
            ErrorCode::timeout);
  EXPECT_GE(Clock::now() - before, std::chrono::milliseconds(95));
  EXPECT_NE(text.find("\"never\""), std::string::npos) << text;
}

TEST_P(StoreConformance, GetWaitsForACounterToo) {
  for (const bool raises : {false, true}) {
    std::promise<void> got;
    std::thread later([&] {
      const auto store = client_();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      raises ? store->raise("late least", 3) : store->add("late sum", 3);
      // get() must be woken by the new value, not by its deadline.
      EXPECT_EQ(got.get_future().wait_for(std::chrono::seconds(15)), std::future_status::ready);
    });
    EXPECT_EQ(store_->get(raises ? "late least" : "late sum", Deadline::after(30)), "3");
    got.set_value();
    later.join();
  }
}

TEST_P(StoreConformance, SetOnceHasOneWinner) {
  for (int round = 0; round < 20; ++round) {
    const auto key = "once" + std::to_string(round);
    std::vector<std::string> seen(4);
    run_ranks(4, [&](int rank) {
      const auto store = client_();
      seen[static_cast<size_t>(rank)] = store->set_once(key, std::to_string(rank));
    });
    EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 1u);
    EXPECT_EQ(store_->try_get(key), seen[0]);
  }
}

TEST_P(StoreConformance, AddLosesNothing) {
  EXPECT_EQ(store_->add("n", -5), -5);
  EXPECT_EQ(store_->add("n", 5), 0);
  std::atomic<int64_t> sum = 0;
  run_ranks(4, [&](int) {
    const auto store = client_();
    for (int i = 0; i < 50; ++i) sum += store->add("n", 1);
  });
  EXPECT_EQ(store_->try_get("n"), "200");
  EXPECT_EQ(sum, 200 * 201 / 2);  // every value was returned exactly once
  store_->set("text", "seven");
  EXPECT_EQ(code_of([&] { store_->add("text", 1); }), ErrorCode::invalid_argument);
}

TEST_P(StoreConformance, RaiseNeverLowers) {
  EXPECT_EQ(store_->raise("n", 5), 5);
  EXPECT_EQ(store_->raise("n", 3), 5);
  EXPECT_EQ(store_->add("n", 1), 6);
  EXPECT_EQ(store_->raise("absent", -2), 0);
  run_ranks(4, [&](int rank) {
    const auto store = client_();
    for (int i = 0; i < 25; ++i) EXPECT_GE(store->raise("n", 4 * i + rank), 4 * i + rank);
  });
  EXPECT_EQ(store_->try_get("n"), "99");
  store_->set("text", "seven");
  EXPECT_EQ(code_of([&] { store_->raise("text", 1); }), ErrorCode::invalid_argument);
  EXPECT_EQ(store_->try_get("text"), "seven");
}

// Keys of many lengths, because a store may shorten long ones.
TEST_P(StoreConformance, ErasesAllKeysThatBeginAlikeAndNoOther) {
  for (const size_t length : {size_t{3}, size_t{130}, size_t{190}, size_t{600}}) {
    const std::string path = std::string(length, '/') + "1/";
    const std::vector<std::string> inside = {path, path + "a", path + "b/c", path + "%",
                                             path + std::string(300, 'x')};
    const std::vector<std::string> outside = {
        path.substr(0, path.size() - 1), path.substr(0, path.size() - 1) + "2/a", "/" + path,
        "k" + path, std::string(length, '/') + "10/" + std::string(300, 'x')};
    for (const auto* keys : {&inside, &outside})
      for (const auto& key : *keys) store_->set(key, key);
    store_->erase_all(path);
    for (const auto& key : inside) EXPECT_FALSE(store_->try_get(key)) << key;
    for (const auto& key : outside) EXPECT_EQ(store_->try_get(key), key);
  }
  store_->erase_all("nothing begins so");
  EXPECT_EQ(code_of([&] { store_->erase_all(""); }), ErrorCode::invalid_argument);
}

}  // namespace tutti::test
