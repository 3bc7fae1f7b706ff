#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tutti {

/// How others find a Region: what a peer, or a device's library, needs to map it.
struct RegionHandle {
  enum class Kind : uint8_t {
    none,     // nobody can
    address,  // threads of this process, at `offset`
    file,     // whoever gets `descriptor` maps it, at `offset` of that file
  };
  Kind kind = Kind::none;
  int descriptor = -1;  // borrowed from the Region, as long as it lives; -1: none
  uint64_t offset = 0;  // in bytes
  uint64_t bytes = 0;   // from there on
};

/// Memory in which buckets live. Freed with the object; 4096-byte aligned.
class Region {
 public:
  static constexpr size_t kAlignment = 4096;
  virtual ~Region() = default;
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  virtual RegionHandle handle() const { return {}; }
};

/// One in memory of this process alone. Throws std::bad_alloc.
std::unique_ptr<Region> make_heap_region(size_t bytes);

}  // namespace tutti
