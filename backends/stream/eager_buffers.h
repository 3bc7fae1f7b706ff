#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tutti/backends/stream/frame.h"

namespace tutti {

/// Where eager messages wait for their receive. Blocks are powers of two; the address space for as
/// many of each size as all peers have credit for is reserved at once, so that none is ever missing
/// or allocated later, and becomes memory when it is first used. Not thread-safe.
class EagerBuffers {
 public:
  /// `bytes`: the credit of all peers together. Throws Error(out_of_memory).
  explicit EagerBuffers(uint64_t bytes);
  ~EagerBuffers();
  EagerBuffers(const EagerBuffers&) = delete;
  EagerBuffers& operator=(const EagerBuffers&) = delete;

  /// Null for 0 bytes.
  std::byte* take(size_t bytes);
  /// `bytes` as it was taken.
  void give_back(std::byte* block, size_t bytes);

 private:
  static constexpr size_t kLeastOrder = 6;  // 64 bytes
  static constexpr size_t kOrders =
      static_cast<size_t>(std::bit_width(kMaxEagerBytes - 1)) - kLeastOrder + 1;
  struct Size {
    std::byte* next = nullptr;  // never used yet, up to `end`
    std::byte* end = nullptr;
    std::byte* free = nullptr;  // a list, linked by the blocks' first bytes
  };
  static size_t order(size_t bytes);

  std::byte* memory_ = nullptr;
  size_t reserved_ = 0;
  std::array<Size, kOrders> sizes_;
};

}  // namespace tutti
