#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

/// A buffer of at least this size is not in a cache any more when it is read next, because it
/// exceeds a core's share of the last-level cache. The value is fixed because virtual machines
/// often report wrong cache sizes.
inline constexpr int64_t kBeyondCachesBytes = 32 << 20;

/// Copies `bytes` bytes between buffers that do not overlap, past the caches. Cache lines of
/// `output` that a core holds are evicted, so the next reader loads them from memory. The function
/// ends with a store fence, so later stores become visible after the copied bytes.
void copy_past_caches(std::byte* output, const std::byte* input, size_t bytes);

}  // namespace tutti
