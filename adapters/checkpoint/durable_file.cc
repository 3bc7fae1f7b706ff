#include "tutti/adapters/checkpoint/durable_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "tutti/base/error.h"

namespace tutti {

DurableFile::DurableFile(const std::string& file)
    : file_(file), fd_(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (!fd_) throw system_error(fmt::format("cannot write \"{}\"", file_), errno);
}

void DurableFile::write(const void* data, uint64_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto written = ::write(fd_.get(), at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      throw system_error(fmt::format("cannot write \"{}\" beyond {} bytes", file_, bytes_), errno);
    at += written;
    bytes -= static_cast<uint64_t>(written);
    bytes_ += static_cast<uint64_t>(written);
  }
}

void DurableFile::finish() {
  if (::fsync(fd_.get()) != 0)
    throw system_error(fmt::format("cannot write \"{}\" to the disk", file_), errno);
}

void sync_folder(const std::string& folder) {
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0)
    throw system_error(fmt::format("cannot write the folder \"{}\" to the disk", folder), errno);
}

void rename_folder(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw system_error(fmt::format("cannot rename \"{}\" to \"{}\"", from, to), errno);
}

namespace {

// Returns whether the error means that the kernel or the file system does not support the flags of
// renameat2.
bool knows_no_flags(int error) {
  return error == EINVAL || error == ENOSYS || error == ENOTSUP || error == EOPNOTSUPP;
}

}  // namespace

void put_in_place(const std::string& draft, const std::string& name, const std::string& aside) {
  struct stat about {};
  if (::stat(name.c_str(), &about) != 0 || !S_ISDIR(about.st_mode))
    return rename_folder(draft, name);
  if (::renameat2(AT_FDCWD, draft.c_str(), AT_FDCWD, name.c_str(), RENAME_EXCHANGE) == 0) return;
  if (!knows_no_flags(errno))
    throw system_error(fmt::format("cannot exchange \"{}\" and \"{}\"", draft, name), errno);
  rename_folder(name, aside);
  try {
    rename_folder(draft, name);
  } catch (const Error&) {
    rename_folder(aside, name);
    throw;
  }
}

FolderLock::FolderLock(const std::string& folder) {
  const std::string file = folder + "/.lock";
  fd_ = Descriptor(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd_) throw system_error(fmt::format("cannot write \"{}\"", file), errno);
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    if (reason != EWOULDBLOCK) throw system_error(fmt::format("cannot lock \"{}\"", file), reason);
    char who[32] = {};
    if (::pread(fd_.get(), who, sizeof who - 1, 0) <= 0) who[0] = '?';
    throw Error(ErrorCode::io,
                fmt::format("another process ({}) is writing into \"{}\"; give each job a folder "
                            "of its own, or wait for that one",
                            who, folder));
  }
  // The number is only for the error text of a process that finds the folder locked.
  const auto own = std::to_string(::getpid());
  if (::ftruncate(fd_.get(), 0) == 0 && ::pwrite(fd_.get(), own.data(), own.size(), 0) < 0) return;
}

}  // namespace tutti
