#include "tutti/base/process/memory_check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

// This symbol exists in programs built with AddressSanitizer and is null in all others.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the name is AddressSanitizer's.
extern "C" [[gnu::weak]] void* __asan_region_is_poisoned(void* begin, size_t bytes);

namespace tutti {

bool is_still_there(const void* memory, size_t bytes) {
  if (bytes == 0) return true;
  if (__asan_region_is_poisoned != nullptr &&
      __asan_region_is_poisoned(const_cast<void*>(memory), bytes) != nullptr)
    return false;
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  constexpr uintptr_t kPagesAtOnce = 16384;
  std::array<unsigned char, kPagesAtOnce> resident;
  const auto end = reinterpret_cast<uintptr_t>(memory) + bytes;
  for (auto at = reinterpret_cast<uintptr_t>(memory) / page * page; at < end;
       at += kPagesAtOnce * page) {
    const auto part = std::min(end - at, kPagesAtOnce * page);
    // Only ENOMEM means that pages are missing. Any other failure is a problem of the system.
    if (::mincore(reinterpret_cast<void*>(at), part, resident.data()) != 0 && errno == ENOMEM)
      return false;
  }
  return true;
}

}  // namespace tutti
