#include "tutti/base/private_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/temporary_file.h"

namespace tutti {

namespace {

// With a trailing slash, open() would follow a link despite O_NOFOLLOW.
std::string without_last_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "folder";
  if (S_ISREG(mode)) return "file";
  return S_ISLNK(mode) ? "symbolic link" : "special file";
}

Error not_private(const std::string& path, const struct stat& seen, std::string_view wanted,
                  mode_t wanted_mode) {
  return {ErrorCode::authentication,
          fmt::format("{} is a {} of user {} with mode {:04o}, through which another user could "
                      "plant the job's secret; expected a {} of user {} with mode {:04o}. Name a "
                      "folder that does not exist yet, or remove the others' write permission",
                      path, kind_of(seen.st_mode), seen.st_uid, seen.st_mode & 07777, wanted,
                      ::geteuid(), wanted_mode)};
}

}  // namespace

PrivateFolder::PrivateFolder(const std::string& path) : path_(without_last_slashes(path)) {
  std::error_code ignored;
  const auto parent = std::filesystem::path(path_).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, ignored);
  if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) fail("make it", errno);
  folder_.reset(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  const int error = errno;
  struct stat seen {};
  const int found = folder_ ? ::fstat(folder_.get(), &seen) : ::lstat(path_.c_str(), &seen);
  if (found != 0) fail("open it", folder_ ? errno : error);
  if (!S_ISDIR(seen.st_mode) || seen.st_uid != ::geteuid() || (seen.st_mode & 022) != 0)
    throw not_private(path_, seen, "folder", 0700);
  if (!folder_) fail("open it", error);
}

std::optional<std::string> PrivateFolder::read(const std::string& name, size_t most) const {
  const Descriptor file = open_file(name, O_RDONLY);
  struct stat seen {};
  if (!file) {
    if (::fstat(folder_.get(), &seen) != 0) fail("look at it", errno);
    if (seen.st_nlink == 0) fail("read from it, it was removed", ENOENT);
    return {};
  }
  std::string text;
  char buffer[4096];
  while (true) {
    const auto count = ::read(file.get(), buffer, sizeof buffer);
    if (count == 0) return text;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("read from it", errno);
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > most) fail(fmt::format("use {}: it is too long", name), EFBIG);
  }
}

void PrivateFolder::put(const std::string& name, std::string_view text) const {
  const auto aside = write_aside(text);
  if (::renameat(folder_.get(), aside.c_str(), folder_.get(), name.c_str()) == 0) return;
  const int error = errno;
  remove(aside);
  fail("write into it", error);
}

bool PrivateFolder::put_once(const std::string& name, std::string_view text) const {
  const auto aside = write_aside(text);
  const int result = ::linkat(folder_.get(), aside.c_str(), folder_.get(), name.c_str(), 0);
  const int error = errno;
  remove(aside);
  if (result != 0 && error != EEXIST) fail("write into it", error);
  return result == 0;
}

void PrivateFolder::remove(const std::string& name) const noexcept {
  ::unlinkat(folder_.get(), name.c_str(), 0);
}

std::vector<std::string> PrivateFolder::names() const {
  // Listing needs its own descriptor, because a shared one would share the read position.
  Descriptor own(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> list(own ? ::fdopendir(own.get()) : nullptr,
                                                 ::closedir);
  if (!list) fail("list it", errno);
  own.release();
  std::vector<std::string> names;
  errno = 0;
  while (const auto* entry = ::readdir(list.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) fail("list it", errno);
  return names;
}

Descriptor PrivateFolder::lock(const std::string& name, Deadline deadline) const {
  Descriptor file = open_file(name, O_RDWR | O_CREAT);
  if (!file) fail("lock it", ENOENT);
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) fail("lock it", errno);
    if (deadline.passed()) fail("lock it, another process holds the lock", ETIMEDOUT);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return file;
}

void PrivateFolder::fail(std::string_view what, int error) const {
  throw Error(ErrorCode::unavailable, fmt::format("the folder {} failed: cannot {}: {}", path_,
                                                  what, std::strerror(error)));
}

// Returns null if the file does not exist. Files may be older than the folder's checked mode, so
// each file is checked. O_NONBLOCK keeps a pipe from blocking open().
Descriptor PrivateFolder::open_file(const std::string& name, int flags) const {
  Descriptor file(
      ::openat(folder_.get(), name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  const int error = errno;
  struct stat seen {};
  if (!file && error == ENOENT) return file;
  const int found = file ? ::fstat(file.get(), &seen)
                         : ::fstatat(folder_.get(), name.c_str(), &seen, AT_SYMLINK_NOFOLLOW);
  if (found != 0) fail("open " + name, file ? errno : error);
  if (!S_ISREG(seen.st_mode) || seen.st_uid != ::geteuid() || (seen.st_mode & 077) != 0)
    throw not_private(path_ + "/" + name, seen, "file", 0600);
  if (!file) fail("open " + name, error);
  return file;
}

std::string PrivateFolder::write_aside(std::string_view text) const {
  auto [name, file, refused] = make_temporary_file(folder_.get(), ".", "", 0600);
  if (!file) fail("write into it", refused);
  while (!text.empty()) {
    const auto count = ::write(file.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      remove(name);
      fail("write into it", error);
    }
    text.remove_prefix(static_cast<size_t>(count));
  }
  return name;
}

}  // namespace tutti
