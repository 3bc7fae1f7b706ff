#pragma once

#include <cstddef>
#include <memory>

namespace tutti {

/// Memory in which buckets live. Freed with the object; 4096-byte aligned.
class Region {
 public:
  static constexpr size_t kAlignment = 4096;
  virtual ~Region() = default;
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
};

/// One in memory of this process alone. Throws std::bad_alloc.
std::unique_ptr<Region> make_heap_region(size_t bytes);

}  // namespace tutti
