#pragma once

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "tutti/base/descriptor.h"

namespace tutti::fuzz {

/// An input as a file that never touches a disk, for readers that need a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : file_(::memfd_create("input", MFD_CLOEXEC)) {
    while (!bytes.empty()) {
      const auto written = ::write(file_.get(), bytes.data(), bytes.size());
      if (written <= 0) throw std::bad_alloc();
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }
  std::string path() const { return fmt::format("/proc/self/fd/{}", file_.get()); }
  /// Returns the file's current contents.
  std::string bytes() const {
    std::string text(static_cast<size_t>(::lseek(file_.get(), 0, SEEK_END)), '\0');
    if (::pread(file_.get(), text.data(), text.size(), 0) < 0) text.clear();
    return text;
  }

 private:
  const Descriptor file_;
};

}  // namespace tutti::fuzz
