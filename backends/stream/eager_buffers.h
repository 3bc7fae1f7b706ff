#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tutti/backends/stream/frame.h"

namespace tutti {

/// Buffers for eager messages that arrive before their receive is posted. Block sizes are powers of
/// two. For each block size, the constructor reserves address space for as many blocks as the
/// credit of all peers allows. So a block is always available, and later calls allocate nothing. A
/// page takes memory only when it is first used. Not thread-safe.
class EagerBuffers {
 public:
  /// `bytes`: the credit of all peers together. Throws Error(out_of_memory).
  explicit EagerBuffers(uint64_t bytes);
  ~EagerBuffers();
  EagerBuffers(const EagerBuffers&) = delete;
  EagerBuffers& operator=(const EagerBuffers&) = delete;

  /// Returns a block of at least `bytes` bytes, or null for 0 bytes.
  std::byte* take(size_t bytes);
  /// `bytes` is the size that was passed to take().
  void give_back(std::byte* block, size_t bytes);

 private:
  static constexpr size_t kLeastOrder = 6;  // 64 bytes
  static constexpr size_t kOrders =
      static_cast<size_t>(std::bit_width(kMaxEagerBytes - 1)) - kLeastOrder + 1;
  struct Size {
    std::byte* next = nullptr;  // the blocks from here to `end` were never used
    std::byte* end = nullptr;
    std::byte* free = nullptr;  // a list of blocks, linked through their first bytes
  };
  static size_t order(size_t bytes);

  std::byte* memory_ = nullptr;
  size_t reserved_ = 0;
  std::array<Size, kOrders> sizes_;
};

}  // namespace tutti
