#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tutti/backends/backend.h"

namespace tutti {

/// Memory of this rank that its peers reach by loads and stores, and the peers' memory. A `place`
/// is the offset of a position in its rank's memory or, between threads of one process, its
/// address. Ranks exchange only places. Memory that a rank has allocated stays readable and
/// writable for its peers as long as they live. One thread at a time uses it; any thread may call
/// place_of().
class SharedMemory {
 public:
  static constexpr uint64_t kNowhere = ~uint64_t{0};
  virtual ~SharedMemory() = default;
  /// Allocates zeroed, page-aligned memory of this rank. Throws Error(out_of_memory). Every rank's
  /// first region exists before any rank has its SharedMemory; see first().
  virtual std::unique_ptr<Region> allocate(size_t bytes) = 0;
  /// Allocates memory that is never reused: peers can still read it after the Region, or the rank
  /// itself, is gone. It is for data that a rank sends before it leaves.
  virtual std::unique_ptr<Region> allocate_for_good(size_t bytes) = 0;
  /// Returns the offset of the `bytes` bytes at `data`; kNowhere if they are not all in one region
  /// of this memory.
  virtual uint64_t place_of(const std::byte* data, size_t bytes) const = 0;
  /// Returns the address of a peer's memory, or of this rank's. Throws Error(corrupt_data) for an
  /// impossible offset.
  virtual std::byte* at(int rank, uint64_t place, size_t bytes) = 0;
  /// Returns the block that every rank has from the start. Its maker determines its size.
  virtual std::byte* first(int rank) = 0;
  /// Wakes the sleeping engine of a rank.
  virtual void ring(int rank) = 0;
};

/// How operations in shared memory are cut; equal on all ranks. A rank reads it once per operation.
struct Geometry {
  int64_t chunk_bytes = 256 << 10;  // bytes of a chunk: a multiple of 64, and at least 64 per rank
  /// Up to this many bytes of all ranks together, every rank reads the whole data of every rank, so
  /// that it waits only once. At most chunk_bytes.
  int64_t one_shot_bytes = 128 << 10;
  /// Shorter input is packed, since a copy costs less than to wait until all ranks have read it.
  /// More than a ChunkLine's payload.
  int64_t read_in_place_bytes = 16 << 10;
};

/// Returns a Backend that runs operations of queues (Launch::queue) in shared memory and all others
/// over `rest`. `memory->first()` must have shared_block_bytes() of the same geometry.
std::unique_ptr<Backend> make_shared_memory_backend(const Context& context,
                                                    std::unique_ptr<Backend> rest,
                                                    std::unique_ptr<SharedMemory> memory,
                                                    const Geometry& geometry = {});
size_t shared_block_bytes(const Geometry& geometry = {});

}  // namespace tutti
