#pragma once

#include <memory>
#include <vector>

#include "tutti/backends/shared/shared_memory.h"
#include "tutti/backends/shm/shm_channel.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// A file in memory without a name that only grows: what one rank shares with the others of its
/// host. Sealed against shrinking, so that touching what is there cannot fault.
class SharedFile {
 public:
  /// Throws Error(out_of_memory | io).
  static SharedFile create(size_t bytes);
  /// One that a peer sent; throws Error(corrupt_data) if it may shrink or is shorter than `bytes`.
  static SharedFile adopt(Descriptor file, size_t bytes);

  int descriptor() const { return file_.get(); }
  size_t bytes() const;
  /// Appends zeroed memory, all of it allocated; returns where it begins.
  uint64_t grow(size_t bytes);
  /// Gives the memory back to the system; its place reads as zeros then, and is not to be touched
  /// before restore().
  void discard(uint64_t place, size_t bytes) noexcept;
  /// Allocates zeroed memory where some was discarded. Throws Error(out_of_memory), changing
  /// nothing.
  void restore(uint64_t place, size_t bytes);

 private:
  explicit SharedFile(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
};

/// `own` has shared_block_bytes() already; `ends` of the peers hold their files (taken from there).
std::unique_ptr<SharedMemory> make_shm_memory(
    int rank, int size, SharedFile own, std::span<const std::unique_ptr<ShmEnds>* const> ends);

}  // namespace tutti
