// The library's view of the program's arrays: by Python's buffers, by DLPack or by address.

#include <dlpack/dlpack.h>

#include <array>
#include <cstring>

#include "tutti/adapters/python/native/native.h"

namespace tutti::python {

namespace {

struct DTypeRow {
  const char* name;
  int64_t bytes;
  uint8_t dlpack;  // DLDataTypeCode
};

// The rows are in the order of enum tutti_dtype.
constexpr std::array<DTypeRow, 14> kDTypes = {{{"f64", 8, kDLFloat},
                                               {"f32", 4, kDLFloat},
                                               {"f16", 2, kDLFloat},
                                               {"bf16", 2, kDLBfloat},
                                               {"i8", 1, kDLInt},
                                               {"i16", 2, kDLInt},
                                               {"i32", 4, kDLInt},
                                               {"i64", 8, kDLInt},
                                               {"u8", 1, kDLUInt},
                                               {"u16", 2, kDLUInt},
                                               {"u32", 4, kDLUInt},
                                               {"u64", 8, kDLUInt},
                                               {"bool", 1, 6},  // DLPack 0.8's kDLBool
                                               {"raw", 1, kDLUInt}}};

constexpr const char* kWant =
    "f64, f32, f16, bf16, i8 to i64, u8 to u64 or bool, or items of plain bytes, which are moved "
    "as "
    "raw";

// Returns the dtype of a buffer's items, by the letters of Python's struct module, or -1 if there
// is none.
int dtype_of_format(const char* format, Py_ssize_t item) {
  if (format == nullptr) return TUTTI_U8;
  if (*format == '@' || *format == '=' || *format == '<' || (item == 1 && *format != '\0'))
    if (std::strchr("@=<>!", *format) != nullptr) ++format;
  if (std::strlen(format) != 1) return -1;
  const auto by_size = [&](int first) {
    return item == 1   ? first
           : item == 2 ? first + 1
           : item == 4 ? first + 2
           : item == 8 ? first + 3
                       : -1;
  };
  switch (*format) {
    case 'd':
      return TUTTI_F64;
    case 'f':
      return TUTTI_F32;
    case 'e':
      return TUTTI_F16;
    case '?':
      return TUTTI_BOOL;
    case 'c':
      return TUTTI_U8;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return by_size(TUTTI_I8);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return by_size(TUTTI_U8);
    default:
      return -1;
  }
}

int dtype_of_dlpack(const DLDataType& type) {
  if (type.lanes != 1) return -1;
  for (size_t i = 0; i < kDTypes.size(); ++i)
    if (kDTypes[i].dlpack == type.code && kDTypes[i].bytes * 8 == type.bits)
      return static_cast<int>(i);
  return -1;
}

// Returns whether items without a dtype can be copied as bytes, such as complex numbers, fp8 and
// structs. Python objects cannot.
bool is_plain(const char* format) {
  return format != nullptr && std::strpbrk(format, "OPX&") == nullptr;
}

// Raw bytes have the shape of their items and one more dimension, the bytes of an item. A scalar
// becomes one row.
void append_bytes(std::vector<int64_t>& shape, std::vector<int64_t>& strides, int64_t item) {
  if (shape.empty()) {
    shape.push_back(1);
    strides.push_back(item);
  }
  if (shape.size() < TUTTI_MAX_DIMENSIONS) {
    shape.push_back(item);
    strides.push_back(1);
  } else {
    shape.back() *= item;
    if (strides.back() == item) strides.back() = 1;
  }
}

std::string join(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

bool set_shape(const std::vector<int64_t>& shape, const std::string& what, tutti_tensor_t& tensor) {
  if (shape.size() > TUTTI_MAX_DIMENSIONS) {
    refuse(what + " has " + std::to_string(shape.size()) + " dimensions (at most " +
           std::to_string(TUTTI_MAX_DIMENSIONS) + "); reshape it");
    return false;
  }
  tensor.dimensions = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor.shape);
  return true;
}

/// `strides` are in bytes, because the strides of a struct's field need not be multiples of its
/// item size. The stride of a dimension with at most one element has no meaning.
bool check_dense(const std::vector<int64_t>& strides, const std::string& what,
                 const tutti_tensor_t& tensor) {
  int64_t dense = item_bytes(tensor.dtype);
  bool is_dense = true;
  for (size_t i = strides.size(); i-- > 0;) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && strides[i] != dense) is_dense = false;
    dense *= tensor.shape[i];
  }
  if (is_dense) return true;
  refuse(
      what + " " + describe(tensor) + " is not contiguous (its strides are [" + join(strides) +
      "] bytes); pass a contiguous copy, as by numpy.ascontiguousarray, and copy the result back");
  return false;
}

}  // namespace

const char* dtype_name(int dtype) {
  return dtype < 0 || dtype >= static_cast<int>(kDTypes.size())
             ? "?"
             : kDTypes[static_cast<size_t>(dtype)].name;
}

int dtype_number(const std::string& name) {
  for (size_t i = 0; i < kDTypes.size(); ++i)
    if (name == kDTypes[i].name) return static_cast<int>(i);
  return -1;
}

int64_t item_bytes(int dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }

uint8_t dlpack_code(int dtype) { return kDTypes[static_cast<size_t>(dtype)].dlpack; }

std::string describe(const tutti_tensor_t& tensor) {
  return std::string(dtype_name(tensor.dtype)) + "[" +
         join({tensor.shape, tensor.shape + tensor.dimensions}) + "]";
}

// --- the program's arrays ------------------------------------------------------------------------

Given& Given::operator=(Given&& other) noexcept {
  std::swap(tensor, other.tensor);
  std::swap(object_, other.object_);
  std::swap(buffer_, other.buffer_);
  std::swap(managed_, other.managed_);
  return *this;
}

void Given::release() {
  const PutAside raised_before;  // the exception may be why this object is released
  if (buffer_) PyBuffer_Release(buffer_.get());
  buffer_ = nullptr;
  if (auto* managed = std::exchange(managed_, nullptr); managed && managed->deleter)
    managed->deleter(managed);
  object_ = Reference();
}

bool Given::read(PyObject* object, bool writable, const std::string& what) {
  object_ = Reference::to(object);
  if (const auto* known = known_tensor(object)) {
    tensor = *known;
    return true;
  }
  if (PyObject_CheckBuffer(object)) return read_buffer(object, writable, what);
  if (PyObject_HasAttrString(object, "__dlpack__")) return read_dlpack(object, what);
  const Reference type(PyType_GetName(Py_TYPE(object)));
  refuse(what + " is of type " + (type ? text_of(type.get()) : "?") +
         ", which has neither a buffer nor __dlpack__; pass a numpy array, a torch tensor or a "
         "tutti.Memory");
  return false;
}

bool Given::read_buffer(PyObject* object, bool writable, const std::string& what) {
  auto buffer = std::make_unique<Py_buffer>();
  int flags = PyBUF_FORMAT | PyBUF_STRIDES;
  if (writable) flags |= PyBUF_WRITABLE;
  if (PyObject_GetBuffer(object, buffer.get(), flags) != 0) {
    const auto why = take_exception_text();
    refuse(what + (writable ? " is read-only, or its memory cannot be had (" : " has no memory (") +
           why + (writable ? "); pass an array that may be written, or an output" : ")"));
    return false;
  }
  buffer_ = std::move(buffer);
  tensor.data = buffer_->buf;
  tensor.dtype = dtype_of_format(buffer_->format, buffer_->itemsize);
  std::vector<int64_t> shape(buffer_->shape, buffer_->shape + buffer_->ndim),
      strides(buffer_->strides, buffer_->strides + buffer_->ndim);
  if (tensor.dtype < 0 && is_plain(buffer_->format)) {
    tensor.dtype = TUTTI_RAW;
    append_bytes(shape, strides, buffer_->itemsize);
  } else if (tensor.dtype < 0 || item_bytes(tensor.dtype) != buffer_->itemsize) {
    refuse(what + " has items of format \"" + (buffer_->format ? buffer_->format : "") +
           "\" (expected " + kWant + ")");
    return false;
  }
  return set_shape(shape, what, tensor) && check_dense(strides, what, tensor);
}

// A device's contents are ready on its default stream, because the producer makes that stream wait
// for the producer's stream.
bool Given::read_dlpack(PyObject* object, const std::string& what) {
  const Reference place(PyObject_CallMethod(object, "__dlpack_device__", nullptr));
  int kind = 0, index = 0;
  if (!place || !PyArg_ParseTuple(place.get(), "ii", &kind, &index)) return false;
  const bool is_cuda = kind == kDLCUDA || kind == kDLCUDAManaged;
  if (!is_cuda && kind != kDLCPU && kind != kDLCUDAHost) {
    refuse(what + " lies on DLPack's device " + std::to_string(kind) +
           " (expected the CPU or CUDA)");
    return false;
  }
  const Reference method(PyObject_GetAttrString(object, "__dlpack__"));
  const Reference none(PyTuple_New(0)),
      stream(is_cuda ? Py_BuildValue("{s:i}", "stream", 1) : PyDict_New());
  if (!method || !none || !stream) return false;
  const Reference capsule(PyObject_Call(method.get(), none.get(), stream.get()));
  if (!capsule) {
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) return false;
    const auto why = take_exception_text();
    refuse(what + " cannot be had by DLPack (" + why + ")");
    return false;
  }
  managed_ = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.get(), "dltensor"));
  if (managed_ == nullptr || PyCapsule_SetName(capsule.get(), "used_dltensor") != 0) {
    managed_ = nullptr;
    return false;
  }
  const auto& source = managed_->dl_tensor;
  tensor.data = static_cast<char*>(source.data) + source.byte_offset;
  tensor.dtype = dtype_of_dlpack(source.dtype);
  std::vector<int64_t> shape(source.shape, source.shape + source.ndim), strides;
  const int64_t bits = int64_t{source.dtype.bits} * source.dtype.lanes;
  if (source.strides != nullptr) strides.assign(source.strides, source.strides + source.ndim);
  const bool is_raw = tensor.dtype < 0 && source.dtype.code != kDLOpaqueHandle && bits % 8 == 0;
  for (auto& stride : strides) stride *= is_raw ? bits / 8 : 1;
  if (is_raw) {
    std::vector<int64_t> ignored;
    tensor.dtype = TUTTI_RAW;
    append_bytes(shape, source.strides != nullptr ? strides : ignored, bits / 8);
  }
  tensor.device = is_cuda ? TUTTI_CUDA : TUTTI_CPU;
  tensor.device_index = is_cuda ? index : 0;
  if (tensor.dtype < 0) {
    refuse(what + " has DLPack's type " + std::to_string(source.dtype.code) + " of " +
           std::to_string(source.dtype.bits) + " bits (expected " + kWant + ")");
    return false;
  }
  if (!set_shape(shape, what, tensor)) return false;
  if (source.strides == nullptr) return true;
  for (auto& stride : strides) stride *= item_bytes(tensor.dtype);
  return check_dense(strides, what, tensor);
}

}  // namespace tutti::python
