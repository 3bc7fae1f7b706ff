#pragma once

#include <memory>
#include <vector>

#include "tutti/backends/shared/shared_memory.h"
#include "tutti/backends/shm/shm_channel.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// A file in memory without a name: the memory that one rank shares with the others of its host. It
/// only grows and is sealed against shrinking, so access to its bytes cannot fault.
class SharedFile {
 public:
  /// Throws Error(out_of_memory | io).
  static SharedFile create(size_t bytes);
  /// Adopts a file that a peer sent. Throws Error(corrupt_data) if it may shrink or is shorter than
  /// `bytes`.
  static SharedFile adopt(Descriptor file, size_t bytes);

  int descriptor() const { return file_.get(); }
  size_t bytes() const;
  /// Appends zeroed memory, all of it allocated. Returns its offset.
  uint64_t grow(size_t bytes);
  /// Gives the memory back to the system. The range then reads as zeros; it must not be used before
  /// restore().
  void discard(uint64_t place, size_t bytes) noexcept;
  /// Allocates zeroed memory in a discarded range. Throws Error(out_of_memory) and then changes
  /// nothing.
  void restore(uint64_t place, size_t bytes);

 private:
  explicit SharedFile(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
};

/// `own` already has shared_block_bytes(). `ends` hold the peers' files, which are taken from
/// there.
std::unique_ptr<SharedMemory> make_shm_memory(
    int rank, int size, SharedFile own, std::span<const std::unique_ptr<ShmEnds>* const> ends);

}  // namespace tutti
