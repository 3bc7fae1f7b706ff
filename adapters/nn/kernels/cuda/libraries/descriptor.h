#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "tutti/adapters/nn/kernels/cuda/libraries/libraries.h"

namespace tutti::cuda {

/// Returns the enumerator by which cuDNN names an attribute's type.
template <class T>
constexpr cudnnBackendAttributeType_t attribute_type();
template <>
constexpr cudnnBackendAttributeType_t attribute_type<int64_t>() {
  return CUDNN_TYPE_INT64;
}
template <>
constexpr cudnnBackendAttributeType_t attribute_type<float>() {
  return CUDNN_TYPE_FLOAT;
}
template <>
constexpr cudnnBackendAttributeType_t attribute_type<char>() {
  return CUDNN_TYPE_CHAR;
}
template <>
constexpr cudnnBackendAttributeType_t attribute_type<void*>() {
  return CUDNN_TYPE_VOID_PTR;
}
template <>
constexpr cudnnBackendAttributeType_t attribute_type<cudnnHandle_t>() {
  return CUDNN_TYPE_HANDLE;
}
template <>
constexpr cudnnBackendAttributeType_t attribute_type<cudnnDataType_t>() {
  return CUDNN_TYPE_DATA_TYPE;
}
template <>
constexpr cudnnBackendAttributeType_t attribute_type<cudnnConvolutionMode_t>() {
  return CUDNN_TYPE_CONVOLUTION_MODE;
}
template <>
constexpr cudnnBackendAttributeType_t attribute_type<cudnnBackendHeurMode_t>() {
  return CUDNN_TYPE_HEUR_MODE;
}
template <>
constexpr cudnnBackendAttributeType_t attribute_type<cudnnBackendNumericalNote_t>() {
  return CUDNN_TYPE_NUMERICAL_NOTE;
}

/// A descriptor of cuDNN's backend API, destroyed with the object. Throws as Cudnn::check().
class Descriptor {
 public:
  Descriptor(const Cudnn& library, cudnnBackendDescriptorType_t type) : library_(&library) {
    library.check(library.cudnnBackendCreateDescriptor(type, &native_), "make a descriptor");
  }
  ~Descriptor() {
    if (native_ != nullptr) library_->cudnnBackendDestroyDescriptor(native_);
  }
  Descriptor(Descriptor&& other) noexcept
      : library_(other.library_), native_(std::exchange(other.native_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, const std::vector<T>& values) {
    return put(name, attribute_type<T>(), static_cast<int64_t>(values.size()), values.data());
  }
  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, const T& value) {
    return put(name, attribute_type<T>(), 1, &value);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    return put(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.native_);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, bool value) {
    return put(name, CUDNN_TYPE_BOOLEAN, 1, &value);
  }
  Descriptor& finish() {
    library_->check(library_->cudnnBackendFinalize(native_), "finish a descriptor");
    return *this;
  }
  /// Finalizes the descriptor. Returns whether the library accepts it.
  bool try_finish() { return library_->cudnnBackendFinalize(native_) == CUDNN_STATUS_SUCCESS; }

  /// Returns at most `most` values of an attribute.
  template <class T>
  std::vector<T> get(cudnnBackendAttributeName_t name, size_t most) const {
    std::vector<T> values(most);
    int64_t count = 0;
    library_->check(
        library_->cudnnBackendGetAttribute(native_, name, attribute_type<T>(),
                                           static_cast<int64_t>(most), &count, values.data()),
        "read an attribute");
    values.resize(static_cast<size_t>(count));
    return values;
  }
  /// Fills existing descriptors from an attribute. Returns how many values the attribute has.
  int64_t get(cudnnBackendAttributeName_t name, std::vector<Descriptor>& into) const {
    std::vector<cudnnBackendDescriptor_t> all;
    for (const auto& one : into) all.push_back(one.native_);
    int64_t count = 0;
    library_->check(
        library_->cudnnBackendGetAttribute(native_, name, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                           static_cast<int64_t>(all.size()), &count, all.data()),
        "read an attribute");
    return count;
  }
  cudnnBackendDescriptor_t native() const { return native_; }

 private:
  Descriptor& put(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                  const void* values) {
    library_->check(library_->cudnnBackendSetAttribute(native_, name, type, count, values),
                    "set an attribute");
    return *this;
  }

  const Cudnn* library_;
  cudnnBackendDescriptor_t native_ = nullptr;
};

}  // namespace tutti::cuda
