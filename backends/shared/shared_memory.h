#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tutti/backends/backend.h"

namespace tutti {

/// Memory of this rank that its peers reach by loads and stores, and theirs. A place is where
/// something lies in its rank's memory; peers tell each other places, never addresses. Whatever a
/// rank allocated stays readable and writable for its peers as long as they live. One thread at a
/// time, except place_of(), which any thread may call.
class SharedMemory {
 public:
  static constexpr uint64_t kNowhere = ~uint64_t{0};
  virtual ~SharedMemory() = default;
  /// Zeroed, page-aligned memory of this rank. Throws Error(out_of_memory). Every rank's first
  /// region is there before any rank has its SharedMemory: see first().
  virtual std::unique_ptr<Region> allocate(size_t bytes) = 0;
  /// The same, but what a rank wrote there its peers can read when the Region is gone, and the rank
  /// with it: for what it gave away before it left. Never given back before.
  virtual std::unique_ptr<Region> allocate_for_good(size_t bytes) = 0;
  /// Where `bytes` bytes at `data` lie; kNowhere if they are not all in one region of this memory.
  virtual uint64_t place_of(const std::byte* data, size_t bytes) const = 0;
  /// A peer's memory, or this rank's. Throws Error(corrupt_data) for a place that cannot be.
  virtual std::byte* at(int rank, uint64_t place, size_t bytes) = 0;
  /// The block that every rank has from the start, of the size that its maker was told.
  virtual std::byte* first(int rank) = 0;
  /// Wakes the engine of a rank that sleeps.
  virtual void ring(int rank) = 0;
};

/// How operations in shared memory are cut, alike on all ranks. A rank reads it once an operation.
struct Geometry {
  int64_t chunk_bytes = 256 << 10;  // of a chunk: a multiple of 64, 64 for each rank at least
  /// Up to so many bytes of all ranks together every rank reads all of every rank's data, but waits
  /// only once. At most those of a chunk.
  int64_t one_shot_bytes = 128 << 10;
  /// Shorter input is packed: to wait until all have read it costs more than a copy. More than fit
  /// in a ChunkLine.
  int64_t read_in_place_bytes = 16 << 10;
};

/// A Backend that runs what comes in queues (Launch::queue) straight in shared memory, and all else
/// over `rest`. `memory->first()` must be shared_block_bytes() large for the same geometry.
std::unique_ptr<Backend> make_shared_memory_backend(const Context& context,
                                                    std::unique_ptr<Backend> rest,
                                                    std::unique_ptr<SharedMemory> memory,
                                                    const Geometry& geometry = {});
size_t shared_block_bytes(const Geometry& geometry = {});

}  // namespace tutti
