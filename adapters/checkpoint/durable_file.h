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

/// Gives the folder `from` the name `to`, which nothing has.
void rename_folder(const std::string& from, const std::string& to);

/// Puts the folder `draft` in the place of `name`, at once: whoever looks sees the one or the
/// other. A folder of that name that was there is then called `draft`, or `aside` where the file
/// system cannot exchange two names (NFS); for a moment only `aside` is there then.
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
