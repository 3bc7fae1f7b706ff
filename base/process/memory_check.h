#pragma once

#include <cstddef>

namespace tutti {

/// Returns whether a program still owns this host memory: every page of it is mapped, and under
/// AddressSanitizer none of it was freed. Freed heap memory whose pages the allocator keeps is
/// detected only under AddressSanitizer. The check costs one system call per 64 MiB.
bool is_still_there(const void* memory, size_t bytes);

}  // namespace tutti
