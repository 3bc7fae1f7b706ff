#include <fmt/format.h>

#include <algorithm>

#include "tutti/backends/store.h"
#include "tutti/backends/store/store_checks.h"
#include "tutti/base/little_endian.h"
#include "tutti/base/private_folder.h"

namespace tutti {

namespace {

// The longest wait for the lock of the counters.
constexpr double kLockSeconds = 30;

// Replaces the bytes of a key that a file name should not have.
std::string escape(std::string_view key) {
  std::string text;
  for (const char c : key) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.';
    text += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
  }
  return text;
}

// If the escaped key is shorter than kLongestWhole, the file name is "k" and that key. Otherwise it
// is "h", the first kBeginning bytes of the escaped key, and a hash.
constexpr size_t kLongestWhole = 200, kBeginning = 150;

std::string file_name(const std::string& key) {
  const auto escaped = escape(key);
  if (escaped.size() < kLongestWhole) return "k" + escaped;
  return fmt::format("h{}%{:016x}{:016x}", escaped.substr(0, kBeginning), hash_text(key),
                     hash_text(key, 1));
}

// Returns the contents of a key's file, which end with the value. If the file name has only a part
// of the key, the contents begin with the key.
std::string file_text(const std::string& name, std::string_view key, std::string_view value) {
  std::string text;
  if (name.starts_with('h')) {
    append_number(text, static_cast<uint32_t>(key.size()));
    text += key;
  }
  return text += value;
}

// Removes the key that may precede the value in `text`, and returns that key.
std::string_view take_key(const std::string& name, std::string_view& text) {
  if (!name.starts_with('h')) return {};
  if (text.size() < sizeof(uint32_t)) text = {};
  const size_t bytes = text.empty() ? 0 : take_number<uint32_t>(text);
  const auto key = text.substr(0, bytes);
  text.remove_prefix(key.size());
  return key;
}

/// A store with one file per key. Readers see a file as a whole or not at all.
class FileStore final : public Store {
 public:
  explicit FileStore(const std::string& folder) : folder_(folder) {}

  void set(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    const auto name = file_name(key);
    folder_.put(name, file_text(name, key, value));
  }

  std::string set_once(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    const auto name = file_name(key);
    if (folder_.put_once(name, file_text(name, key, value))) return std::string(value);
    // If the key does not exist now, another rank has erased it in between. Then this rank's value
    // counts.
    return try_get(key).value_or(std::string(value));
  }

  std::optional<std::string> try_get(const std::string& key) override {
    const auto name = file_name(key);
    const auto text = folder_.read(name, kMostInFile);
    if (!text) return {};
    std::string_view value = *text;
    take_key(name, value);
    return std::string(value);
  }

  std::string get(const std::string& key, Deadline deadline) override {
    auto pause = std::chrono::microseconds(500);
    constexpr auto kLongest = std::chrono::microseconds(20'000);
    while (true) {
      if (auto value = try_get(key)) return std::move(*value);
      if (deadline.passed()) throw_store_timeout(key);
      Clock::sleep_for(pause);
      pause = std::min(pause * 2, kLongest);
    }
  }

  int64_t add(const std::string& key, int64_t amount) override {
    return count(key, [&](int64_t value) { return counter_sum(key, value, amount); });
  }

  int64_t raise(const std::string& key, int64_t least) override {
    return count(key, [&](int64_t value) { return std::max(value, least); });
  }

  void erase(const std::string& key) override { folder_.remove(file_name(key)); }

  void erase_all(const std::string& prefix) override {
    check_store_entry(prefix);
    const auto escaped = escape(prefix);
    for (const auto& name : folder_.names()) {
      const auto said = std::string_view(name).substr(1, name[0] == 'h' ? kBeginning : name.npos);
      if (name[0] == 'k' && said.starts_with(escaped)) folder_.remove(name);
      if (name[0] != 'h' || !said.starts_with(std::string_view(escaped).substr(0, kBeginning)))
        continue;
      const auto text = folder_.read(name, kMostInFile).value_or("");
      std::string_view rest = text;
      if (take_key(name, rest).starts_with(prefix)) folder_.remove(name);
    }
  }

 private:
  static constexpr size_t kMostInFile = sizeof(uint32_t) + kMaxStoreKeyBytes + kMaxStoreValueBytes;

  template <typename Change>
  int64_t count(const std::string& key, Change change) {
    check_store_entry(key);
    const Descriptor lock = folder_.lock(".lock", Deadline::after(kLockSeconds));
    const int64_t changed = change(store_counter(key, try_get(key).value_or("")));
    set(key, std::to_string(changed));
    return changed;
  }

  const PrivateFolder folder_;
};

}  // namespace

std::shared_ptr<Store> make_file_store(const std::string& folder) {
  return std::make_shared<FileStore>(folder);
}

}  // namespace tutti
