#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "tutti/backends/store.h"
#include "tutti/backends/store/store_checks.h"
#include "tutti/base/private_folder.h"

namespace tutti {

namespace {

// How long the lock of the counters may be held by others.
constexpr double kLockSeconds = 30;

/// One file a key, which appears whole or not at all.
class FileStore final : public Store {
 public:
  explicit FileStore(const std::string& folder) : folder_(folder) {}

  void set(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    folder_.put(file_name(key), value);
  }

  std::string set_once(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    if (folder_.put_once(file_name(key), value)) return std::string(value);
    // It can only be gone again if another rank erased it this moment; then it was its to say.
    return try_get(key).value_or(std::string(value));
  }

  std::optional<std::string> try_get(const std::string& key) override {
    return folder_.read(file_name(key), kMaxStoreValueBytes);
  }

  std::string get(const std::string& key, Deadline deadline) override {
    auto pause = std::chrono::microseconds(500);
    constexpr auto kLongest = std::chrono::microseconds(20'000);
    while (true) {
      if (auto value = try_get(key)) return std::move(*value);
      if (deadline.passed()) throw_store_timeout(key);
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongest);
    }
  }

  int64_t add(const std::string& key, int64_t amount) override {
    check_store_entry(key);
    const Descriptor lock = folder_.lock(".lock", Deadline::after(kLockSeconds));
    const int64_t sum = store_counter(key, try_get(key).value_or("")) + amount;
    folder_.put(file_name(key), std::to_string(sum));
    return sum;
  }

  void erase(const std::string& key) override { folder_.remove(file_name(key)); }

 private:
  // Keys are any bytes; file names are not, and are shorter. Long ones end in a hash.
  static std::string file_name(const std::string& key) {
    std::string name = "k";
    for (const char c : key) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
      name += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
    }
    constexpr size_t kLongest = 200;
    if (name.size() <= kLongest) return name;
    return fmt::format("h{}%{:016x}{:016x}", name.substr(1, 150), hash_text(key),
                       hash_text(key, 1));
  }

  const PrivateFolder folder_;
};

}  // namespace

std::shared_ptr<Store> make_file_store(const std::string& folder) {
  return std::make_shared<FileStore>(folder);
}

}  // namespace tutti
