#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// A folder in which only this process's user can create, change or replace files. The folder is
/// opened and checked once, and all of its files are accessed through that descriptor. So a user
/// who may write to the parent folders can remove the folder, but cannot put another one in its
/// place.
///
/// If the operating system reports a failure, the functions throw Error(unavailable), which names
/// the folder and the reason.
class PrivateFolder {
 public:
  /// Creates the folder with mode 0700 if it is missing, and the folders above it. Throws
  /// Error(authentication) if the folder is a link, belongs to another user or is writable by other
  /// users. The error names the folder, its owner and its mode.
  explicit PrivateFolder(const std::string& path);

  /// Returns a file's whole text, or nothing if the file does not exist. Throws
  /// Error(authentication) if another user could have written or read the file: it is a link, has
  /// another owner, or has a mode beyond 0600. Throws Error(unavailable) if it has more than `most`
  /// bytes.
  std::optional<std::string> read(const std::string& name, size_t most) const;
  /// Creates or replaces a file atomically, with mode 0600. A crash leaves at most a file whose
  /// name begins with a dot.
  void put(const std::string& name, std::string_view text) const;
  /// Creates a file like put() and returns true. Returns false if a file of that name exists.
  bool put_once(const std::string& name, std::string_view text) const;
  void remove(const std::string& name) const noexcept;
  /// Returns the names of all files, including those that begin with a dot.
  std::vector<std::string> names() const;
  /// Locks a file. The lock ends when the descriptor is closed, also by a crash.
  Descriptor lock(const std::string& name, Deadline deadline) const;

 private:
  [[noreturn]] void fail(std::string_view what, int error) const;
  Descriptor open_file(const std::string& name, int flags) const;
  std::string write_aside(std::string_view text) const;

  std::string path_;
  Descriptor folder_;
};

}  // namespace tutti
