#include "tutti/adapters/torch/torch_store.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "tutti/backends/store/store_checks.h"
#include "tutti/base/error.h"

namespace tutti::torch {

namespace {

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

class TorchStore final : public Store {
 public:
  explicit TorchStore(::c10::intrusive_ptr<::c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    ask("set", key, [&] { store_->set(key, bytes_of(value)); });
  }

  std::string set_once(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    return exchange(key, {}, value);
  }

  std::optional<std::string> try_get(const std::string& key) override {
    std::optional<std::string> found;
    ask("get", key, [&] {
      if (store_->check({key})) found = text_of(store_->get(key));
    });
    return found;
  }

  std::string get(const std::string& key, Deadline deadline) override {
    auto pause = std::chrono::microseconds(500);
    while (true) {
      if (auto found = try_get(key)) return *std::move(found);
      if (deadline.passed())
        throw Error(
            ErrorCode::timeout,
            fmt::format("no rank set the key \"{}\" of torch's store before the deadline", key));
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 3 / 2, std::chrono::microseconds(20'000));
    }
  }

  int64_t add(const std::string& key, int64_t amount) override {
    check_store_entry(key);
    int64_t sum = 0;
    try {
      ask("add", key, [&] { sum = store_->add(key, amount); });
    } catch (const Error&) {
      store_counter(key, try_get(key).value_or(""));  // says so if that is no number
      throw;
    }
    return sum;
  }

  // Another rank's change in between only means to look again, and each such change is a step of
  // that rank, so all together get on.
  int64_t raise(const std::string& key, int64_t least) override {
    check_store_entry(key);
    auto before = try_get(key).value_or("");
    while (true) {
      const int64_t value = store_counter(key, before);
      if (value >= least) return value;
      auto now = exchange(key, before, std::to_string(least));
      if (now == std::to_string(least)) return least;
      before = std::move(now);
    }
  }

  void erase(const std::string& key) override {
    ask("deleteKey", key, [&] { store_->deleteKey(key); });
  }

  void erase_all(const std::string& prefix) override { check_store_entry(prefix); }

 private:
  // The value that then stands.
  std::string exchange(const std::string& key, std::string_view expected,
                       std::string_view desired) {
    std::string now;
    ask("compareSet", key,
        [&] { now = text_of(store_->compareSet(key, bytes_of(expected), bytes_of(desired))); });
    return now;
  }

  template <class Question>
  static void ask(const char* what, const std::string& key, const Question& question) {
    try {
      question();
    } catch (const ::c10::Error& error) {
      throw unavailable(what, key, error.what_without_backtrace());
    } catch (const std::exception& error) {
      throw unavailable(what, key, error.what());
    }
  }
  static Error unavailable(const char* what, const std::string& key, std::string_view why) {
    return Error(ErrorCode::unavailable, fmt::format("torch's store: {} of \"{}\" failed: {}", what,
                                                     key, why.substr(0, why.find('\n'))));
  }

  const ::c10::intrusive_ptr<::c10d::Store> store_;
};

}  // namespace

std::shared_ptr<Store> make_torch_store(::c10::intrusive_ptr<::c10d::Store> store) {
  return std::make_shared<TorchStore>(std::move(store));
}

}  // namespace tutti::torch
