#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/backends/stream/ring_buffer.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// Allocates the pages of this range of a memfd, which grows if it is shorter. Throws
/// Error(out_of_memory | io); then nothing has changed.
void allocate_pages(int memory, uint64_t begin, size_t bytes);

/// A mapping of two rings that two processes share. It is a memfd without a name, so it vanishes
/// with its processes. Its pages are allocated at the start and its size is sealed, so access
/// cannot fault. Side 0 writes ring 0, and side 1 writes ring 1.
class SharedRings {
 public:
  /// Makes the memory. Throws Error(out_of_memory), which names the number of bytes, or Error(io).
  static SharedRings create(size_t ring_bytes);
  /// Takes over a descriptor that a peer sent. Throws Error(corrupt_data) if it does not refer to
  /// memory that create(ring_bytes) made.
  static SharedRings adopt(Descriptor memory, size_t ring_bytes);
  static bool is_valid_size(uint64_t ring_bytes);

  SharedRings(SharedRings&& other) noexcept;
  SharedRings& operator=(SharedRings&&) = delete;
  ~SharedRings();

  RingControl& control(int side) const;
  std::span<std::byte> ring(int side) const;
  int descriptor() const { return memory_.get(); }
  /// Closes the descriptor; the mapping stays.
  void close_descriptor() { memory_.reset(); }

 private:
  SharedRings(Descriptor memory, size_t ring_bytes);

  Descriptor memory_;
  size_t ring_bytes_ = 0;
  std::byte* base_ = nullptr;
};

}  // namespace tutti
