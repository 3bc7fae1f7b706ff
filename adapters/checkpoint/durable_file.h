#pragma once

#include <cstdint>
#include <string>

#include "tutti/base/descriptor.h"

namespace tutti {

/// A file that is written anew and whole on the disk after finish(). What goes wrong is an
/// Error(io) that names it.
class DurableFile {
 public:
  explicit DurableFile(const std::string& file);
  /// All of them; the system takes at most 2 GiB a call.
  void write(const void* data, uint64_t bytes);
  /// Writes out what the system still keeps in memory.
  void finish();
  uint64_t bytes() const { return bytes_; }  // written

 private:
  const std::string file_;
  const Descriptor fd_;
  uint64_t bytes_ = 0;
};

/// So that names in the folder are on the disk as well as what they name.
void sync_folder(const std::string& folder);

/// Renames the folder `from` to `to`, a name that is free.
void rename_folder(const std::string& from, const std::string& to);

/// Puts the folder `draft` in the place of `name` by one rename, so that a reader sees either the
/// old folder or the new one. An old folder is then called `draft`. Some file systems (NFS) cannot
/// exchange two names: there the old folder is called `aside`, and for a moment it alone is there.
void put_in_place(const std::string& draft, const std::string& name, const std::string& aside);

/// Of all processes that write into a folder one has it; it goes with the process.
class FolderLock {
 public:
  /// Throws Error(io) that names the folder and who is writing there, at once.
  explicit FolderLock(const std::string& folder);

 private:
  Descriptor fd_;
};

}  // namespace tutti
