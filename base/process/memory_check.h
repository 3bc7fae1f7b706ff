#pragma once

#include <cstddef>

namespace tutti {

/// Whether a program still has this host memory: every page of it is mapped, and under
/// AddressSanitizer none of it was freed. Heap memory that was freed and whose pages the allocator
/// keeps is seen under AddressSanitizer only. One system call for each 64 MiB.
bool is_still_there(const void* memory, size_t bytes);

}  // namespace tutti
