// The C interface's stores: the library's own in memory, and stores that the program provides.

#include <algorithm>
#include <cstddef>
#include <thread>

#include "tutti/adapters/c/sized.h"
#include "tutti/adapters/c/status.h"
#include "tutti/adapters/c/tutti.h"
#include "tutti/adapters/c/values.h"
#include "tutti/backends/store/store_checks.h"

/// Receives the value that a function of the program's store found.
struct tutti_value {
  std::optional<std::string> bytes;
};

namespace tutti::c {

namespace {

/// A Store that calls the program's functions. Any thread may call them, several at the same time,
/// so the program must synchronize them.
class ProgramStore final : public Store {
 public:
  explicit ProgramStore(const tutti_store_functions_t& functions) : functions_(functions) {}
  ~ProgramStore() override {
    if (functions_.destroy != nullptr) functions_.destroy(functions_.context);
  }
  ProgramStore(const ProgramStore&) = delete;
  ProgramStore& operator=(const ProgramStore&) = delete;

  void set(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    if (functions_.set != nullptr)
      return call("set", key, [&] {
        return functions_.set(functions_.context, key.c_str(), value.data(), value.size());
      });
    change(key, [&](const auto&) { return std::string(value); });
  }

  std::string set_once(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    return compare_set(key, {}, value);
  }

  std::optional<std::string> try_get(const std::string& key) override {
    tutti_value found;
    call("get", key, [&] { return functions_.get(functions_.context, key.c_str(), &found); });
    return std::move(found.bytes);
  }

  std::string get(const std::string& key, Deadline deadline) override {
    auto pause = std::chrono::milliseconds(1);
    while (true) {
      if (auto found = functions_.wait == nullptr ? try_get(key) : wait(key, deadline))
        return *std::move(found);
      if (deadline.passed()) throw_store_timeout(key);
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::milliseconds(20));
    }
  }

  int64_t add(const std::string& key, int64_t amount) override {
    check_store_entry(key);
    int64_t sum = 0;
    call("add", key, [&] { return functions_.add(functions_.context, key.c_str(), amount, &sum); });
    return sum;
  }

  int64_t raise(const std::string& key, int64_t least) override {
    check_store_entry(key);
    return store_counter(key, change(key, [&](const std::optional<std::string>& before) {
                           const int64_t value = store_counter(key, before.value_or(""));
                           return std::to_string(std::max(value, least));
                         }));
  }

  void erase(const std::string& key) override {
    if (functions_.erase == nullptr) return;
    call("erase", key, [&] { return functions_.erase(functions_.context, key.c_str()); });
  }

  void erase_all(const std::string& prefix) override {
    check_store_entry(prefix);
    if (functions_.erase_all == nullptr) return;
    call("erase_all", prefix,
         [&] { return functions_.erase_all(functions_.context, prefix.c_str()); });
  }

 private:
  template <class Call>
  void call(const char* what, const std::string& key, Call&& function) {
    const LastErrorKept kept;
    const int status = function();
    if (status == 0) return;
    const auto told = LastErrorKept::told();
    throw Error(ErrorCode::unavailable,
                fmt::format("the program's store: {} of \"{}\" {}", what, key,
                            told.empty() ? fmt::format("returned {}", status)
                                         : fmt::format("failed: {}", told)));
  }

  // Calls the program's `wait` for at most one second at a time. So a wait ends soon after its
  // deadline, even if the program's function checks nothing while it waits.
  std::optional<std::string> wait(const std::string& key, Deadline deadline) {
    double seconds = 1;
    if (!deadline.is_never())
      seconds = std::clamp(std::chrono::duration<double>(deadline.when() - Clock::now()).count(),
                           0.0, seconds);
    tutti_value found;
    call("wait", key,
         [&] { return functions_.wait(functions_.context, key.c_str(), seconds, &found); });
    return std::move(found.bytes);
  }

  std::string compare_set(const std::string& key, const std::optional<std::string>& expected,
                          std::string_view desired) {
    tutti_value found;
    call("compare_set", key, [&] {
      return functions_.compare_set(
          functions_.context, key.c_str(), expected ? expected->data() : nullptr,
          expected ? expected->size() : 0, desired.data(), desired.size(), &found);
    });
    if (!found.bytes)
      throw Error(
          ErrorCode::unavailable,
          fmt::format("the program's store: compare_set of \"{}\" gave no value (expected the "
                      "current one, by tutti_value_set)",
                      key));
    return *std::move(found.bytes);
  }

  // Repeats compare_set until no other rank changes the key in between. A try fails only because
  // another rank's change succeeded, so the ranks together make progress. add() cannot be built on
  // this: if two ranks set equal values, neither knows whose change succeeded.
  template <class Change>
  std::string change(const std::string& key, Change changed) {
    constexpr int kMostInVain = 100;
    auto before = try_get(key);
    for (int in_vain = 0; in_vain < kMostInVain;) {
      const std::string after = changed(before);
      auto now = compare_set(key, before, after);
      if (now == after) return after;
      // An empty value may mean that the key was erased meanwhile.
      auto found = now.empty() ? try_get(key) : std::move(now);
      in_vain = found == before ? in_vain + 1 : 0;
      before = std::move(found);
    }
    throw Error(ErrorCode::unavailable,
                fmt::format("the program's store: compare_set of \"{}\" left the value that it was "
                            "to change {} times; it must set the desired one where the expected "
                            "one stands",
                            key, kMostInVain));
  }

  const tutti_store_functions_t functions_;
};

}  // namespace

}  // namespace tutti::c

using namespace tutti;     // NOLINT: the functions below are the C side of that namespace
using namespace tutti::c;  // NOLINT

int tutti_store_create(const tutti_store_functions_t* functions, tutti_store_t* store) {
  if (store != nullptr) *store = nullptr;
  return guarded([&] {
    need(store, "store");
    if (functions == nullptr) {
      *store = new tutti_store{make_memory_store()};
      return;
    }
    const auto read = read_sized(functions, tutti_store_functions_t{}, "a store's functions",
                                 "zeros, with struct_size set");
    need(read.get, "get");
    need(read.compare_set, "compare_set");
    need(read.add, "add");
    *store = new tutti_store{std::make_shared<ProgramStore>(read)};
  });
}

int tutti_value_set(tutti_value_t value, const void* bytes, size_t size) {
  return guarded([&] {
    need(value, "value");
    if (size > 0) need(bytes, "bytes");
    value->bytes.emplace(static_cast<const char*>(bytes), size);
  });
}

void tutti_store_destroy(tutti_store_t store) { delete store; }
