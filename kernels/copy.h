#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

/// What is written and no shorter is not found in a cache when it is read next: more than a core's
/// share of the last one. (Systems tell sizes of caches; virtual machines tell wrong ones.)
inline constexpr int64_t kBeyondCachesBytes = 32 << 20;

/// Copies `bytes` bytes, which must not overlap, past the caches: lines of `output` that some core
/// holds are given up, and whoever reads them next gets them from memory. What was written is
/// ordered like any other store.
void copy_past_caches(std::byte* output, const std::byte* input, size_t bytes);

}  // namespace tutti
