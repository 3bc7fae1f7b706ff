#pragma once

#include <cstddef>
#include <span>

#include "tutti/backends/stream/ring_buffer.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// A mapping of two rings that two processes share. It is a memfd without a name, so nothing of it
/// outlives its processes. Its pages are allocated from the start and its size is sealed, so access
/// cannot fault. Side 0 writes ring 0.
class SharedRings {
 public:
  /// Throws Error(out_of_memory) that names the bytes, or Error(io).
  static SharedRings create(size_t ring_bytes);
  /// Takes over a descriptor that a peer sent. Throws Error(corrupt_data) if it is not of the kind
  /// that create(ring_bytes) makes.
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
