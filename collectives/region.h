#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tutti {

/// How a peer, or a device's library, maps a Region.
struct RegionHandle {
  enum class Kind : uint8_t {
    none,     // the Region cannot be mapped
    address,  // threads of this process use `offset` as the address
    file,     // any process that gets `descriptor` maps it, at `offset` of that file
  };
  Kind kind = Kind::none;
  int descriptor = -1;  // borrowed from the Region while it lives; -1: none
  uint64_t offset = 0;  // offset in bytes
  uint64_t bytes = 0;   // length in bytes
};

/// Memory for buckets. It is freed with the object and aligned to 4096 bytes.
class Region {
 public:
  static constexpr size_t kAlignment = 4096;
  virtual ~Region() = default;
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  virtual RegionHandle handle() const { return {}; }
};

/// Allocates a Region in memory of this process alone. Throws std::bad_alloc.
std::unique_ptr<Region> make_heap_region(size_t bytes);

}  // namespace tutti
