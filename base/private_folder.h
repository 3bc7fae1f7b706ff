#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// A folder in which only this process's user can make, change or replace files. What is looked at
/// is the opened folder, through which all of its files are reached: a user that may write into
/// the folders above it can take it away, but cannot put another one in its place.
///
/// What the operating system refuses is an Error(unavailable) that names folder and reason.
class PrivateFolder {
 public:
  /// Made with mode 0700 if it is missing, and so are the folders above it. Throws
  /// Error(authentication) that names folder, owner and mode if it is a link, belongs to another
  /// user or lets other users write.
  explicit PrivateFolder(const std::string& path);

  /// A file's whole text; nothing if it is not there. Throws Error(authentication) if another user
  /// could have written or read it (a link, another owner, a mode beyond 0600), and
  /// Error(unavailable) for more than `most` bytes.
  std::optional<std::string> read(const std::string& name, size_t most) const;
  /// The file appears whole, with mode 0600, or not at all, whatever stood under the name before. A
  /// crash leaves at most a file whose name begins with a dot.
  void put(const std::string& name, std::string_view text) const;
  /// The same, unless there is a file of that name already: then false.
  bool put_once(const std::string& name, std::string_view text) const;
  void remove(const std::string& name) const noexcept;
  /// Of all files, also those that begin with a dot.
  std::vector<std::string> names() const;
  /// Held until the descriptor is closed, also by a crash.
  Descriptor lock(const std::string& name, Deadline deadline) const;

 private:
  [[noreturn]] void fail(std::string_view what, int error) const;
  Descriptor open_file(const std::string& name, int flags) const;
  std::string write_aside(std::string_view text) const;

  std::string path_;
  Descriptor folder_;
};

}  // namespace tutti
