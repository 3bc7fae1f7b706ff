#pragma once

#include <cstddef>
#include <memory>
#include <ranges>
#include <span>
#include <vector>

#include "tutti/tensor/device.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/shape.h"

// This is DLPack's own struct (<dlpack/dlpack.h>), which Python's __dlpack__ capsules hold.
struct DLManagedTensor;

namespace tutti {

/// A borrowed, dense tensor: pointer, shape, element type, device, and the stream on which its
/// contents become ready. The memory must outlive every operation on it. Only a GradientArena
/// creates views that are not row-major. Operations that treat all elements the same (allreduce,
/// reduce, broadcast) accept such views in the order of memory, and their strides must be equal on
/// all ranks. Other operations reject them.
class TensorView {
 public:
  TensorView() = default;
  /// Row-major memory of shape.count() elements.
  TensorView(void* data, Shape shape, DataType dtype, Device device = {}, StreamRef stream = {})
      : data_(static_cast<std::byte*>(data)),
        shape_(std::move(shape)),
        dtype_(dtype),
        device_(device),
        stream_(stream) {}

  /// `count` elements that begin at `data`: {pointer, count}.
  template <ElementType T>
  requires(!std::is_const_v<T>) TensorView(T* data, int64_t count)
      : TensorView(data, Shape{count}, dtype_of<T>()) {}
  /// `count` structs, fp8 or complex numbers, or other trivially copyable values, as rows of raw
  /// bytes. The shape is {count, sizeof(T)}.
  template <class T>
  requires(std::is_trivially_copyable_v<T> && !std::is_const_v<T>) static TensorView
      raw(T* data, int64_t count) {
    return {data, Shape{count, static_cast<int64_t>(sizeof(T))}, DataType::raw};
  }
  /// `bytes` raw bytes, which only the program interprets. The shape is {bytes}.
  static TensorView raw(void* data, int64_t bytes) { return {data, Shape{bytes}, DataType::raw}; }
  /// Any contiguous, mutable range of an element type: std::vector<float>, std::span<double>,
  /// arrays. Its shape is {size}.
  template <class Range>
  requires std::ranges::contiguous_range<Range> && std::ranges::sized_range<Range> &&
      (!std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<
           Range>>>)&&ElementType<std::ranges::range_value_t<Range>> TensorView(Range&& range)
      : TensorView(std::ranges::data(range), Shape{static_cast<int64_t>(std::ranges::size(range))},
                   dtype_of<std::ranges::range_value_t<Range>>()) {}

  /// `count` elements in a GPU's memory, ready on `stream` (a cudaStream_t).
  template <ElementType T>
  static TensorView cuda(T* data, int64_t count, void* stream, int device = 0) {
    return {data, Shape{count}, dtype_of<T>(), Device{DeviceKind::cuda, device}, {stream}};
  }

  std::byte* data() const { return data_; }  // first byte
  /// Returns a pointer to the first element; dtype() must be T's.
  template <ElementType T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  const Shape& shape() const { return shape_; }              // shape of the tensor
  bool is_row_major() const { return strides_ == nullptr; }  // if false, see strides()
  /// Returns, for each dimension, the elements from one index to the next.
  std::vector<int64_t> strides() const;
  DataType dtype() const { return dtype_; }                    // type of the elements
  Device device() const { return device_; }                    // device of the memory
  StreamRef stream() const { return stream_; }                 // null on the CPU
  int64_t count() const { return shape_.count(); }             // number of elements
  int64_t bytes() const { return count() * size_of(dtype_); }  // size of all elements
  /// Returns the same memory under another shape with the same number of elements. Throws
  /// Error(invalid_argument) for another number, and for a view that is not row-major.
  TensorView reshaped(Shape shape) const;
  /// Returns the same tensor at another address.
  TensorView at(std::byte* data) const {
    TensorView view = *this;
    view.data_ = data;
    return view;
  }
  /// Returns the same memory with these strides, one per dimension, which must live as long as the
  /// view. Null means row-major.
  TensorView with_strides(const int64_t* strides) const {
    TensorView view = *this;
    view.strides_ = strides;
    return view;
  }

 private:
  std::byte* data_ = nullptr;
  Shape shape_{0};
  const int64_t* strides_ = nullptr;  // borrowed; null if row-major
  DataType dtype_ = DataType::f32;
  Device device_;
  StreamRef stream_;
};

/// A view of memory that is only read. It converts from anything a TensorView converts from, and
/// from const ranges.
class ConstTensorView {
 public:
  ConstTensorView(TensorView view) : view_(std::move(view)) {}  // writable memory may be read, too
  /// Row-major memory that is only read.
  ConstTensorView(const void* data, Shape shape, DataType dtype, Device device = {},
                  StreamRef stream = {})
      : view_(const_cast<void*>(data), std::move(shape), dtype, device, stream) {}
  /// `count` elements that begin at `data`: {pointer, count}.
  template <ElementType T>
  ConstTensorView(const T* data, int64_t count)
      : ConstTensorView(data, Shape{count}, dtype_of<T>()) {}
  /// See TensorView::raw.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  static ConstTensorView raw(const T* data, int64_t count) {
    return {data, Shape{count, static_cast<int64_t>(sizeof(T))}, DataType::raw};
  }
  static ConstTensorView raw(const void* data, int64_t bytes) {  // see TensorView::raw
    return {data, Shape{bytes}, DataType::raw};
  }
  /// Any contiguous range of an element type.
  template <class Range>
  requires std::ranges::contiguous_range<Range> && std::ranges::sized_range<Range> &&
      ElementType<std::ranges::range_value_t<Range>>
      ConstTensorView(Range&& range)
      : ConstTensorView(std::ranges::data(range),
                        Shape{static_cast<int64_t>(std::ranges::size(range))},
                        dtype_of<std::ranges::range_value_t<Range>>()) {}

  /// Returns the view as the engine takes it. The engine writes to it only if it is also the
  /// output.
  const TensorView& view() const { return view_; }

 private:
  TensorView view_;
};

/// An owning tensor. Copies share the memory (a handle); clone() allocates new memory. Memory is
/// zeroed when it is allocated, and 64-byte aligned.
class Tensor {
 public:
  Tensor() = default;
  /// Throws Error(out_of_memory | unavailable).
  Tensor(Shape shape, DataType dtype, Device device = {});
  /// Takes over row-major memory that the caller allocated; `owner` keeps it alive. Throws
  /// Error(invalid_argument) for a view with other strides.
  Tensor(TensorView view, std::shared_ptr<void> owner);

  explicit operator bool() const { return owner_ != nullptr; }  // false for Tensor()
  const TensorView& view() const { return view_; }              // valid while any handle exists
  operator TensorView() const { return view_; }                 // borrowed
  operator ConstTensorView() const { return view_; }            // borrowed
  std::byte* data() const { return view_.data(); }              // first byte
  /// Returns a pointer to the first element; dtype() must be T's.
  template <ElementType T>
  T* as() const {
    return view_.as<T>();
  }
  /// Returns all elements; dtype() must be T's.
  template <ElementType T>
  std::span<T> span() const {
    return {as<T>(), static_cast<size_t>(count())};
  }
  const Shape& shape() const { return view_.shape(); }  // shape of the tensor
  DataType dtype() const { return view_.dtype(); }      // type of the elements
  Device device() const { return view_.device(); }      // device of the memory
  int64_t count() const { return view_.count(); }       // number of elements
  int64_t bytes() const { return view_.bytes(); }       // size of all elements
  /// Returns the same memory; throws Error(invalid_argument) for another number of elements.
  Tensor reshaped(Shape shape) const { return {view_.reshaped(std::move(shape)), owner_}; }
  Tensor clone() const;  // allocates new memory

 private:
  TensorView view_;
  std::shared_ptr<void> owner_;
};

/// Copies a tensor's bytes to host memory, in the order of memory, after the work queued on its
/// stream. Waits for that stream. A device's bytes pass through a few MiB of pinned memory, however
/// large the tensor is. Throws the device's error, for example after a kernel that failed.
void copy_to_host(std::byte* target, const ConstTensorView& source);
/// Copies host memory to a tensor in the order of the tensor's stream. The copy is complete when
/// this returns.
void copy_from_host(const TensorView& target, const std::byte* source);
/// Returns the tensor itself if its memory is the host's, else a host copy: see copy_to_host().
Tensor on_host(const Tensor& tensor);

/// Takes over a DLPack tensor without a copy. Its deleter is called once, by whichever thread
/// releases the last Tensor on this memory. Throws Error(invalid_argument) for a tensor that a
/// Tensor cannot represent (gaps between rows, several lanes, an unsupported type or device); the
/// caller then still owns the DLPack tensor. Its contents become ready on `stream`.
Tensor from_dlpack(DLManagedTensor* managed, StreamRef stream = {});

/// Returns a DLPack tensor of the same memory, which it keeps alive until its deleter is called.
/// The caller, or the code to which the caller passes the result, must call the deleter once.
/// Pinned host memory counts as host memory here, and the tests' fake device is DLPack's extension
/// device.
DLManagedTensor* to_dlpack(const Tensor& tensor);

}  // namespace tutti
