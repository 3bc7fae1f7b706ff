#include <algorithm>
#include <cstring>

#include "tutti/tensor/absent_memory.h"
#include "tutti/tensor/device_runtime.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;

// Copies a device's tensor piece by piece through pinned memory.
class PinnedPiece {
 public:
  explicit PinnedPiece(const TensorView& tensor)
      : device_(tensor.device()),
        runtime_(device_runtime(device_.kind)),
        stream_(tensor.stream()),
        bytes_(static_cast<size_t>(tensor.bytes())),
        memory_(runtime_.allocate_host(std::min(bytes_, kPieceBytes))) {}
  ~PinnedPiece() { runtime_.free_host(memory_); }
  PinnedPiece(const PinnedPiece&) = delete;
  PinnedPiece& operator=(const PinnedPiece&) = delete;

  // Calls step(offset, bytes) for each piece.
  template <class Step>
  void for_each(const Step& step) const {
    for (size_t at = 0; at < bytes_; at += kPieceBytes)
      step(at, std::min(kPieceBytes, bytes_ - at));
  }
  // Copies on the device; the copy is complete on return.
  void copy(void* target, const void* source, size_t bytes) const {
    runtime_.copy(target, source, bytes, stream_);
    finish_stream(device_, stream_);
  }
  std::byte* memory() const { return static_cast<std::byte*>(memory_); }

 private:
  const Device device_;
  DeviceRuntime& runtime_;
  const StreamRef stream_;
  const size_t bytes_;
  void* const memory_;
};

}  // namespace

void copy_to_host(std::byte* target, const ConstTensorView& source) {
  const auto& view = source.view();
  if (view.bytes() == 0) return;
  require_present("a tensor to copy to the host", view);
  if (view.device().kind == DeviceKind::cpu) {
    std::memcpy(target, view.data(), static_cast<size_t>(view.bytes()));
    return;
  }
  const PinnedPiece pinned(view);
  pinned.for_each([&](size_t at, size_t bytes) {
    pinned.copy(pinned.memory(), view.data() + at, bytes);
    std::memcpy(target + at, pinned.memory(), bytes);
  });
}

void copy_from_host(const TensorView& target, const std::byte* source) {
  if (target.bytes() == 0) return;
  require_present("a tensor to copy to", target);
  if (target.device().kind == DeviceKind::cpu) {
    std::memcpy(target.data(), source, static_cast<size_t>(target.bytes()));
    return;
  }
  const PinnedPiece pinned(target);
  pinned.for_each([&](size_t at, size_t bytes) {
    std::memcpy(pinned.memory(), source + at, bytes);
    pinned.copy(target.data() + at, pinned.memory(), bytes);
  });
}

Tensor on_host(const Tensor& tensor) {
  require_present("a tensor to copy to the host", tensor);
  if (tensor.device().kind == DeviceKind::cpu) return tensor;
  Tensor host(tensor.shape(), tensor.dtype());
  copy_to_host(host.data(), tensor);
  return host;
}

}  // namespace tutti
