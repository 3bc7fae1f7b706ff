#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "tutti/base/process/fork_guard.h"
#include "tutti/collectives/region.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

class Engine;

/// Memory from Communicator::allocate(), freed with this object. It can be moved but not copied,
/// and may outlive its Communicator. If the memory is freed while an operation uses it, the
/// operation fails on this rank with Error(invalid_argument) that names the operation. The memory
/// then stays mapped until the operation has ended, and the other ranks get the data that was in
/// it. A fork of the process does not free it.
class SharedRegion {
 public:
  SharedRegion() = default;
  SharedRegion(std::weak_ptr<Engine> engine, std::unique_ptr<Region> region);  // for the library
  ~SharedRegion();
  SharedRegion(SharedRegion&& other) noexcept { *this = std::move(other); }  // empties `other`
  SharedRegion& operator=(SharedRegion&& other) noexcept;  // frees its own memory first

  explicit operator bool() const { return region_ != nullptr; }  // false if made by SharedRegion()
  std::byte* data() const { return region_ ? region_->data() : nullptr; }  // 4096-byte aligned
  int64_t bytes() const { return bytes_; }                                 // as requested
  /// Returns the memory as a span of elements. Bytes behind the last whole element are left out.
  template <ElementType T>
  std::span<T> span() const {
    return {reinterpret_cast<T*>(data()), static_cast<size_t>(bytes_) / sizeof(T)};
  }
  /// Returns a tensor in the memory, `offset` bytes from its beginning. Throws
  /// Error(invalid_argument) if it does not fit.
  TensorView view(Shape shape, DataType dtype, int64_t offset = 0) const;
  /// Returns the handle with which another process, or a device's library, can map the memory. It
  /// is Kind::none if nobody can map it.
  RegionHandle handle() const { return region_ ? region_->handle() : RegionHandle(); }

 private:
  void free() noexcept;
  friend class Communicator;
  std::weak_ptr<Engine> engine_;
  std::unique_ptr<Region> region_;
  int64_t bytes_ = 0;
  ForkGuard fork_guard_;
};

}  // namespace tutti
