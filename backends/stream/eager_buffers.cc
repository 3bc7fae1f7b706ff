#include "tutti/backends/stream/eager_buffers.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti {

EagerBuffers::EagerBuffers(uint64_t bytes) {
  const size_t of_each = (static_cast<size_t>(bytes) + kMaxEagerBytes - 1) / kMaxEagerBytes *
                         kMaxEagerBytes;  // a multiple of every block size
  reserved_ = of_each * kOrders;
  void* memory = ::mmap(nullptr, reserved_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw Error(ErrorCode::out_of_memory,
                fmt::format("no address space for {} bytes of message buffers; raise the limit of "
                            "virtual memory (ulimit -v)",
                            reserved_));
  memory_ = static_cast<std::byte*>(memory);
  for (size_t i = 0; i < kOrders; ++i) {
    sizes_[i].next = memory_ + i * of_each;
    sizes_[i].end = sizes_[i].next + of_each;
  }
}

EagerBuffers::~EagerBuffers() { ::munmap(memory_, reserved_); }

size_t EagerBuffers::order(size_t bytes) {
  return static_cast<size_t>(std::bit_width(std::max<size_t>(bytes, 64) - 1)) - kLeastOrder;
}

std::byte* EagerBuffers::take(size_t bytes) {
  if (bytes == 0) return nullptr;
  const size_t index = order(bytes);
  auto& size = sizes_[index];
  std::byte* block = size.free;
  if (block != nullptr) {
    std::memcpy(&size.free, block, sizeof size.free);
    return block;
  }
  block = size.next;
  TUTTI_CHECK(block <
              size.end);  // holds because the core refuses messages beyond the peer's credit
  size.next += size_t{1} << (index + kLeastOrder);
  return block;
}

void EagerBuffers::give_back(std::byte* block, size_t bytes) {
  if (block == nullptr) return;
  auto& size = sizes_[order(bytes)];
  std::memcpy(block, &size.free, sizeof size.free);
  size.free = block;
}

}  // namespace tutti
