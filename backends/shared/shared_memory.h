#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tutti/backends/backend.h"

namespace tutti {

/// Memory of this rank that its peers load from and store into, and the peers' memory. Ranks
/// exchange only offsets (`place`): an offset in its rank's memory or, between threads of one
/// process, an address. Allocated memory stays readable and writable for the peers as long as the
/// peers live. One thread at a time uses this object, but any thread may call place_of().
class SharedMemory {
 public:
  static constexpr uint64_t kNowhere = ~uint64_t{0};
  virtual ~SharedMemory() = default;
  /// Allocates zeroed, page-aligned memory of this rank. Throws Error(out_of_memory). This function
  /// does not allocate the first block of each rank; see first().
  virtual std::unique_ptr<Region> allocate(size_t bytes) = 0;
  /// Allocates memory that is never reused. Peers can still read it after the Region, or this rank,
  /// is gone. It is for data that a rank sends shortly before it leaves.
  virtual std::unique_ptr<Region> allocate_for_good(size_t bytes) = 0;
  /// Returns the offset of the `bytes` bytes at `data`, or kNowhere if they are not all in one
  /// region of this memory.
  virtual uint64_t place_of(const std::byte* data, size_t bytes) const = 0;
  /// Returns the address of memory of a peer or of this rank. Throws Error(corrupt_data) if the
  /// offset is impossible.
  virtual std::byte* at(int rank, uint64_t place, size_t bytes) = 0;
  /// Returns a rank's first block, which exists from the start. The code that makes the
  /// SharedMemory determines its size.
  virtual std::byte* first(int rank) = 0;
  /// Wakes the sleeping engine of a rank.
  virtual void ring(int rank) = 0;
};

/// The sizes by which operations in shared memory are cut into chunks. They are equal on all ranks.
struct Geometry {
  int64_t chunk_bytes = 256 << 10;  // a multiple of 64, at least 64 per rank
  /// If the data of all ranks together has at most this many bytes, every rank reads all of it
  /// ("one shot"), so that it waits only once. Must be at most chunk_bytes.
  int64_t one_shot_bytes = 128 << 10;
  /// Input of fewer bytes is packed, because a copy costs less than waiting until all ranks have
  /// read the input. Must be more than a ChunkLine's payload.
  int64_t read_in_place_bytes = 16 << 10;
};

/// Returns a Backend that runs operations with a Launch::queue in shared memory, and all other
/// operations on the backend `rest`. `memory->first()` must have shared_block_bytes() of the same
/// geometry.
std::unique_ptr<Backend> make_shared_memory_backend(const Context& context,
                                                    std::unique_ptr<Backend> rest,
                                                    std::unique_ptr<SharedMemory> memory,
                                                    const Geometry& geometry = {});
size_t shared_block_bytes(const Geometry& geometry = {});

}  // namespace tutti
