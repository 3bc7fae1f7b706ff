#include "tutti/adapters/sharded/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace tutti {

void drop_contents(const TensorView& tensor) {
  if (tensor.bytes() == 0) return;
  static const auto kPage = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data());
  const auto end = begin + static_cast<uintptr_t>(tensor.bytes());
  const auto first = (begin + kPage - 1) / kPage * kPage, last = end / kPage * kPage;
  if (first >= last) {
    std::memset(tensor.data(), 0, static_cast<size_t>(tensor.bytes()));
    return;
  }
  std::memset(tensor.data(), 0, first - begin);
  std::memset(reinterpret_cast<void*>(last), 0, end - last);
  auto* pages = reinterpret_cast<std::byte*>(first);
  // Shared memory keeps its contents when this process drops its pages. Then this byte is still 1.
  pages[0] = std::byte{1};
  if (::madvise(pages, last - first, MADV_DONTNEED) != 0 || pages[0] != std::byte{0})
    std::memset(pages, 0, last - first);
}

}  // namespace tutti
