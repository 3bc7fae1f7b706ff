#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tutti/backends/store.h"
#include "tutti/backends/store/store_checks.h"
#include "tutti/base/descriptor.h"

namespace tutti {

namespace {

// How long the lock of the counters may be held by others.
constexpr double kLockSeconds = 30;

/// One file a key. A value is written aside and renamed, or linked, into its place, so readers see
/// all of it or nothing; a crash leaves at most a file whose name begins with a dot.
class FileStore final : public Store {
 public:
  explicit FileStore(const std::string& folder) : name_(folder) {
    std::error_code status;
    const auto parent = std::filesystem::path(folder).parent_path();
    if (!parent.empty()) std::filesystem::create_directories(parent, status);
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) fail("make it", errno);
    folder_.reset(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder_) fail("open it", errno);
  }

  void set(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    const auto aside = write_aside(value);
    put_in_place(aside, file_name(key));
  }

  std::string set_once(const std::string& key, std::string_view value) override {
    check_store_entry(key, value);
    const auto aside = write_aside(value);
    const auto name = file_name(key);
    const int result = ::linkat(folder_.get(), aside.c_str(), folder_.get(), name.c_str(), 0);
    const int error = errno;
    ::unlinkat(folder_.get(), aside.c_str(), 0);
    if (result == 0) return std::string(value);
    if (error != EEXIST) fail("write into it", error);
    // It can only be gone again if somebody erased it this moment; then it was his to say.
    return try_get(key).value_or(std::string(value));
  }

  std::optional<std::string> try_get(const std::string& key) override {
    const Descriptor file(
        ::openat(folder_.get(), file_name(key).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file) {
      const int error = errno;
      if (error != ENOENT) fail("read from it", error);
      check_there();
      return {};
    }
    std::string value;
    char buffer[4096];
    while (true) {
      const auto count = ::read(file.get(), buffer, sizeof buffer);
      if (count == 0) return value;
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("read from it", errno);
      value.append(buffer, static_cast<size_t>(count));
      if (value.size() > kMaxStoreValueBytes) fail("use it: a value is too long", EFBIG);
    }
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
    const Descriptor lock = take_lock();
    const int64_t sum = store_counter(key, try_get(key).value_or("")) + amount;
    put_in_place(write_aside(std::to_string(sum)), file_name(key));
    return sum;
  }

  void erase(const std::string& key) override {
    ::unlinkat(folder_.get(), file_name(key).c_str(), 0);
  }

 private:
  [[noreturn]] void fail(std::string_view what, int error) const {
    throw Error(ErrorCode::unavailable, fmt::format("the store's folder {} failed: cannot {}: {}",
                                                    name_, what, std::strerror(error)));
  }

  void check_there() const {
    struct stat status {};
    if (::fstat(folder_.get(), &status) != 0) fail("look at it", errno);
    if (status.st_nlink == 0) fail("read from it, it was removed", ENOENT);
  }

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

  std::string write_aside(std::string_view value) const {
    static std::atomic<uint64_t> serial{0};
    char host[64] = "";
    ::gethostname(host, sizeof host - 1);
    auto name = fmt::format(".{}.{}.{}", host, ::getpid(), serial.fetch_add(1));
    const Descriptor file(
        ::openat(folder_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) fail("write into it", errno);
    while (!value.empty()) {
      const auto count = ::write(file.get(), value.data(), value.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) {
        const int error = errno;
        ::unlinkat(folder_.get(), name.c_str(), 0);
        fail("write into it", error);
      }
      value.remove_prefix(static_cast<size_t>(count));
    }
    return name;
  }

  void put_in_place(const std::string& aside, const std::string& name) const {
    if (::renameat(folder_.get(), aside.c_str(), folder_.get(), name.c_str()) != 0)
      fail("write into it", errno);
  }

  // Held until the descriptor is closed, also by a crash.
  Descriptor take_lock() const {
    Descriptor file(::openat(folder_.get(), ".lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file) fail("lock it", errno);
    const auto deadline = Deadline::after(kLockSeconds);
    while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) fail("lock it", errno);
      if (deadline.passed()) fail("lock it, somebody holds the lock", ETIMEDOUT);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return file;
  }

  const std::string name_;
  Descriptor folder_;
};

}  // namespace

std::shared_ptr<Store> make_file_store(const std::string& folder) {
  return std::make_shared<FileStore>(folder);
}

}  // namespace tutti
