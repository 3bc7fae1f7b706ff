#pragma once

#include <memory>
#include <vector>

#include "tutti/backends/shared/shared_memory.h"
#include "tutti/backends/shm/shm_channel.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// A memory file without a name, which one rank shares with the other ranks of its host. It only
/// grows and is sealed against shrinking, so access to its bytes cannot fault.
class SharedFile {
 public:
  /// Makes a file of this size. Throws Error(out_of_memory | io).
  static SharedFile create(size_t bytes);
  /// Takes over a file that a peer sent. Throws Error(corrupt_data) if the file may shrink or is
  /// shorter than `bytes`.
  static SharedFile adopt(Descriptor file, size_t bytes);

  int descriptor() const { return file_.get(); }
  size_t bytes() const;
  /// Appends zeroed and allocated memory. Returns its offset.
  uint64_t grow(size_t bytes);
  /// Gives the memory back to the system. The range must not be used before restore().
  void discard(uint64_t place, size_t bytes) noexcept;
  /// Allocates zeroed memory in a discarded range. If it throws Error(out_of_memory), nothing has
  /// changed.
  void restore(uint64_t place, size_t bytes);

 private:
  explicit SharedFile(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
};

/// Makes the shared memory of this rank. `own` must already hold shared_block_bytes() bytes. The
/// peers' files are taken from `ends`.
std::unique_ptr<SharedMemory> make_shm_memory(
    int rank, int size, SharedFile own, std::span<const std::unique_ptr<ShmEnds>* const> ends);

}  // namespace tutti
