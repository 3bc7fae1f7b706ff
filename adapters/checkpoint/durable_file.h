#pragma once

#include <cstdint>
#include <string>

#include "tutti/base/descriptor.h"

namespace tutti {

/// A file that is newly written, and whole on the disk after finish(). Failures are Error(io),
/// which names the file.
class DurableFile {
 public:
  explicit DurableFile(const std::string& file);
  /// Writes all bytes, although the system takes at most 2 GiB per call.
  void write(const void* data, uint64_t bytes);
  /// Flushes to disk the data that is still in the system's cache.
  void finish();
  uint64_t bytes() const { return bytes_; }  // written

 private:
  const std::string file_;
  const Descriptor fd_;
  uint64_t bytes_ = 0;
};

/// Writes the names in the folder to the disk. Syncing the named files does not do that.
void sync_folder(const std::string& folder);

/// Renames the folder `from` to `to`. That name must be free.
void rename_folder(const std::string& from, const std::string& to);

/// Gives the folder `draft` the name `name` by one rename, so that a reader sees either the old
/// folder or the new one. The old folder is then called `draft`. Some file systems (NFS) cannot
/// exchange two names. There the old folder is first renamed to `aside`, and for a moment no folder
/// has the name `name`.
void put_in_place(const std::string& draft, const std::string& name, const std::string& aside);

/// A lock that a process must hold to write into a folder. Only one process can hold it, and it
/// ends with the process.
class FolderLock {
 public:
  /// Throws Error(io) immediately if the lock is held. The text names the folder and the process
  /// that writes there.
  explicit FolderLock(const std::string& folder);

 private:
  Descriptor fd_;
};

}  // namespace tutti
