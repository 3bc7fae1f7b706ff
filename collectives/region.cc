#include "tutti/collectives/region.h"

#include <algorithm>
#include <new>

namespace tutti {

namespace {

class HeapRegion final : public Region {
 public:
  explicit HeapRegion(size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(::operator new(std::max<size_t>(bytes, 1), kAligned))) {}
  ~HeapRegion() override { ::operator delete(data_, kAligned); }
  HeapRegion(const HeapRegion&) = delete;
  HeapRegion& operator=(const HeapRegion&) = delete;
  std::byte* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  static constexpr std::align_val_t kAligned{kAlignment};
  const size_t bytes_;
  std::byte* const data_;
};

}  // namespace

std::unique_ptr<Region> make_heap_region(size_t bytes) {
  return std::make_unique<HeapRegion>(bytes);
}

}  // namespace tutti
