#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <thread>

#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"
#include "tutti/core/launch/exchange.h"

namespace tutti {

namespace {

constexpr size_t kLongestText = 4096;

// True if only this process's user can have written it.
bool is_private(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & 077) == 0;
}

}  // namespace

PrivateFile::PrivateFile(const std::string& folder, const std::string& name, std::string_view text)
    : path_(folder + "/" + name) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    throw system_error(fmt::format("cannot make the folder {}", folder), errno);
  auto draft_path = path_ + ".XXXXXX";
  const Descriptor draft(::mkostemp(draft_path.data(), O_CLOEXEC));  // made with mode 0600
  if (!draft) throw system_error(fmt::format("cannot write into {}", folder), errno);
  const auto written = ::write(draft.get(), text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size()) ||
      ::rename(draft_path.c_str(), path_.c_str()) != 0) {
    const int reason = written < 0 || written == static_cast<ssize_t>(text.size()) ? errno : ENOSPC;
    ::unlink(draft_path.c_str());
    throw system_error(fmt::format("cannot write {}", path_), reason);
  }
}

PrivateFile::~PrivateFile() { ::unlink(path_.c_str()); }

std::string read_private_file(const std::string& folder, const std::string& name,
                              Deadline deadline) {
  const auto path = folder + "/" + name;
  while (true) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file) {
      if (!is_private(file.get()))
        throw Error(ErrorCode::authentication,
                    fmt::format("{} could have been written by another user; it must be a file of "
                                "one's own with mode 0600",
                                path));
      std::string text(kLongestText, '\0');
      const auto got = ::read(file.get(), text.data(), text.size());
      if (got < 0) throw system_error(fmt::format("cannot read {}", path), errno);
      text.resize(static_cast<size_t>(got));
      return text;
    }
    if (errno != ENOENT) throw system_error(fmt::format("cannot read {}", path), errno);
    if (deadline.passed())
      throw Error(ErrorCode::timeout,
                  fmt::format("rank 0 left no address in {} before the deadline; if ranks do not "
                              "share that folder, use srun --mpi=pmi2 or set TUTTI_SECRET",
                              path));
    // Another host's file cannot be waited for in any other way.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace tutti
