#pragma once

#include <cstddef>

namespace tutti {

/// Copies `bytes` bytes, which must not overlap, past the caches: lines of `output` that some core
/// holds are given up, and whoever reads them next gets them from memory. What was written is
/// ordered like any other store.
void copy_past_caches(std::byte* output, const std::byte* input, size_t bytes);

}  // namespace tutti
