// The types Memory and Tensor: the program's memory by its address, and the library's memory.

#include <dlpack/dlpack.h>

#include <cstring>

#include "tutti/adapters/python/native/native.h"

namespace tutti::python {

namespace {

/// The objects of both types. A Tensor's memory belongs to its owner.
struct TensorObject {
  PyObject ob_base;
  tutti_tensor_t tensor;
  PyObject* owner;
  Py_ssize_t shape[TUTTI_MAX_DIMENSIONS], strides[TUTTI_MAX_DIMENSIONS];
};

PyTypeObject* memory_type = nullptr;
PyTypeObject* tensor_type = nullptr;

TensorObject* of(PyObject* self) { return reinterpret_cast<TensorObject*>(self); }

void fill_strides(TensorObject* self) {
  Py_ssize_t stride = static_cast<Py_ssize_t>(item_bytes(self->tensor.dtype));
  for (int i = self->tensor.dimensions; i-- > 0;) {
    self->shape[i] = static_cast<Py_ssize_t>(self->tensor.shape[i]);
    self->strides[i] = stride;
    stride *= self->shape[i];
  }
}

void dealloc(PyObject* self) {
  Py_XDECREF(of(self)->owner);
  free_object(self);
}

PyObject* make_memory(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"pointer", "shape",  "dtype", "device",
                                "index",   "stream", "owner", nullptr};
  unsigned long long pointer = 0, stream = 0;
  PyObject *shape = nullptr, *owner = Py_None;
  const char *dtype = nullptr, *device = "cpu";
  int index = 0;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "KOs|$sO&KO:Memory",
                                   const_cast<char**>(names), &pointer, &shape, &dtype, &device,
                                   as_index, &index, &stream, &owner))
    return nullptr;
  std::vector<int64_t> extents;
  if (!read_numbers(shape, "the shape of a Memory", extents)) return nullptr;
  const int number = dtype_number(dtype);
  if (number < 0) return refuse(std::string("\"") + dtype + "\" is not a dtype of a Memory");
  if (extents.size() > TUTTI_MAX_DIMENSIONS)
    return refuse("a Memory has at most 8 dimensions, not " + std::to_string(extents.size()));
  for (const int64_t extent : extents)
    if (extent < 0) return refuse("a Memory has an extent of " + std::to_string(extent));
  const bool is_cuda = std::strcmp(device, "cuda") == 0;
  if (!is_cuda && std::strcmp(device, "cpu") != 0)
    return refuse(std::string("a Memory lies on \"") + device + "\" (expected cpu or cuda)");
  auto* self = allocate<TensorObject>(type);
  if (self == nullptr) return nullptr;
  self->tensor.data = reinterpret_cast<void*>(static_cast<uintptr_t>(pointer));
  self->tensor.dtype = number;
  self->tensor.dimensions = static_cast<int32_t>(extents.size());
  std::copy(extents.begin(), extents.end(), self->tensor.shape);
  self->tensor.device = is_cuda ? TUTTI_CUDA : TUTTI_CPU;
  self->tensor.device_index = index;
  self->tensor.stream = reinterpret_cast<void*>(static_cast<uintptr_t>(stream));
  self->owner = Py_NewRef(owner);
  fill_strides(self);
  return reinterpret_cast<PyObject*>(self);
}

PyObject* get_pointer(PyObject* self, void*) { return PyLong_FromVoidPtr(of(self)->tensor.data); }
PyObject* get_stream(PyObject* self, void*) { return PyLong_FromVoidPtr(of(self)->tensor.stream); }
PyObject* get_index(PyObject* self, void*) {
  return PyLong_FromLong(of(self)->tensor.device_index);
}
PyObject* get_dtype(PyObject* self, void*) {
  return PyUnicode_FromString(dtype_name(of(self)->tensor.dtype));
}
PyObject* get_device(PyObject* self, void*) {
  return PyUnicode_FromString(of(self)->tensor.device == TUTTI_CUDA ? "cuda" : "cpu");
}
PyObject* get_bytes(PyObject* self, void*) {
  return PyLong_FromLongLong(tutti_tensor_bytes(&of(self)->tensor));
}
PyObject* get_shape(PyObject* self, void*) {
  const auto& tensor = of(self)->tensor;
  Reference shape(PyTuple_New(tensor.dimensions));
  for (int i = 0; shape && i < tensor.dimensions; ++i)
    if (PyTuple_SetItem(shape.get(), i, PyLong_FromLongLong(tensor.shape[i])) != 0) return nullptr;
  return shape.release();
}

PyObject* represent(PyObject* self) {
  const Reference type(PyType_GetName(Py_TYPE(self)));
  if (!type) return nullptr;
  return PyUnicode_FromFormat("<tutti.%U %s>", type.get(), describe(of(self)->tensor).c_str());
}

Py_ssize_t length(PyObject* self) {
  const auto& tensor = of(self)->tensor;
  if (tensor.dimensions > 0) return static_cast<Py_ssize_t>(tensor.shape[0]);
  PyErr_SetString(PyExc_TypeError, "a scalar has no length");
  return -1;
}

// --- exports of a Tensor -------------------------------------------------------------------------

int get_buffer(PyObject* self, Py_buffer* buffer, int flags) {
  static const char* formats[] = {"d", "f", "e", nullptr, "b", "h", "i",
                                  "q", "B", "H", "I",     "Q", "?", "B"};
  auto* object = of(self);
  const auto& tensor = object->tensor;
  const char* format = formats[tensor.dtype];
  buffer->obj = nullptr;
  if (tensor.device != TUTTI_CPU) {
    PyErr_SetString(PyExc_BufferError, "the tensor lies on a GPU; take it by DLPack");
    return -1;
  }
  if (format == nullptr && (flags & PyBUF_FORMAT) != 0) {
    PyErr_SetString(PyExc_BufferError,
                    "Python's buffers have no bf16; take the tensor by DLPack, or tobytes()");
    return -1;
  }
  buffer->buf = tensor.data;
  buffer->len = static_cast<Py_ssize_t>(tutti_tensor_bytes(&tensor));
  buffer->itemsize = static_cast<Py_ssize_t>(item_bytes(tensor.dtype));
  buffer->readonly = 0;
  buffer->ndim = tensor.dimensions;
  buffer->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(format) : nullptr;
  buffer->shape = (flags & PyBUF_ND) != 0 ? object->shape : nullptr;
  buffer->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? object->strides : nullptr;
  buffer->suboffsets = nullptr;
  buffer->internal = nullptr;
  buffer->obj = Py_NewRef(self);
  return 0;
}

PyObject* to_bytes(PyObject* self, PyObject*) {
  const auto& tensor = of(self)->tensor;
  if (tensor.device != TUTTI_CPU) return refuse("the tensor lies on a GPU; take it by DLPack");
  return PyBytes_FromStringAndSize(static_cast<const char*>(tensor.data),
                                   static_cast<Py_ssize_t>(tutti_tensor_bytes(&tensor)));
}

/// The view of a Tensor that a DLPack consumer holds.
struct Export {
  DLManagedTensor managed = {};
  int64_t shape[TUTTI_MAX_DIMENSIONS];
  PyObject* owner = nullptr;
};

void end_export(DLManagedTensor* managed) {
  auto* exported = static_cast<Export*>(managed->manager_ctx);
  // A consumer may release the view in any thread. Once the interpreter exits, the owner is no
  // longer released.
  if (const Entered entered; entered) Py_DECREF(exported->owner);
  delete exported;
}

void end_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;  // a consumer owns it
  auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  managed->deleter(managed);
}

PyObject* to_dlpack(PyObject* self, PyObject*, PyObject*) {
  const auto& tensor = of(self)->tensor;
  auto exported = std::make_unique<Export>();
  std::copy_n(tensor.shape, tensor.dimensions, exported->shape);
  auto& target = exported->managed.dl_tensor;
  target.data = tensor.data;
  target.device = {tensor.device == TUTTI_CUDA ? kDLCUDA : kDLCPU, tensor.device_index};
  target.ndim = tensor.dimensions;
  target.dtype = {dlpack_code(tensor.dtype), static_cast<uint8_t>(8 * item_bytes(tensor.dtype)), 1};
  target.shape = exported->shape;
  exported->managed.manager_ctx = exported.get();
  exported->managed.deleter = end_export;
  PyObject* capsule = PyCapsule_New(&exported->managed, "dltensor", end_capsule);
  if (capsule == nullptr) return nullptr;
  exported.release()->owner = Py_NewRef(self);
  return capsule;
}

PyObject* dlpack_device(PyObject* self, PyObject*) {
  const auto& tensor = of(self)->tensor;
  return Py_BuildValue(
      "ii", tensor.device == TUTTI_CUDA ? static_cast<int>(kDLCUDA) : static_cast<int>(kDLCPU),
      static_cast<int>(tensor.device_index));
}

PyObject* no_constructor(PyTypeObject*, PyObject*, PyObject*) {
  return refuse("this type's objects are made by calls of tutti only");
}

}  // namespace

const tutti_tensor_t* known_tensor(PyObject* object) {
  const auto* type = Py_TYPE(object);
  return type == memory_type || type == tensor_type ? &of(object)->tensor : nullptr;
}

PyObject* make_tensor(const tutti_tensor_t& tensor, PyObject* owner) {
  auto* self = allocate<TensorObject>(tensor_type);
  if (self == nullptr) return nullptr;
  self->tensor = tensor;
  self->owner = Py_NewRef(owner);
  fill_strides(self);
  return reinterpret_cast<PyObject*>(self);
}

bool add_memory_types(PyObject* module) {
  static PyGetSetDef attributes[] = {{"pointer", get_pointer, nullptr, nullptr, nullptr},
                                     {"shape", get_shape, nullptr, nullptr, nullptr},
                                     {"dtype", get_dtype, nullptr, nullptr, nullptr},
                                     {"device", get_device, nullptr, nullptr, nullptr},
                                     {"index", get_index, nullptr, nullptr, nullptr},
                                     {"stream", get_stream, nullptr, nullptr, nullptr},
                                     {"nbytes", get_bytes, nullptr, nullptr, nullptr},
                                     {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot memory_slots[] = {{Py_tp_new, reinterpret_cast<void*>(make_memory)},
                                       {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                                       {Py_tp_getset, attributes},
                                       {Py_tp_repr, reinterpret_cast<void*>(represent)},
                                       {0, nullptr}};
  static PyType_Spec memory_spec = {"tutti.Memory", sizeof(TensorObject), 0, Py_TPFLAGS_DEFAULT,
                                    memory_slots};
  static PyMethodDef methods[] = {
      {"tobytes", to_bytes, METH_NOARGS, nullptr},
      {"__dlpack__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(to_dlpack)),
       METH_VARARGS | METH_KEYWORDS, nullptr},
      {"__dlpack_device__", dlpack_device, METH_NOARGS, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot tensor_slots[] = {{Py_tp_new, reinterpret_cast<void*>(no_constructor)},
                                       {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                                       {Py_tp_getset, attributes},
                                       {Py_tp_methods, methods},
                                       {Py_tp_repr, reinterpret_cast<void*>(represent)},
                                       {Py_sq_length, reinterpret_cast<void*>(length)},
                                       {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                                       {0, nullptr}};
  static PyType_Spec tensor_spec = {"tutti.Tensor", sizeof(TensorObject), 0, Py_TPFLAGS_DEFAULT,
                                    tensor_slots};
  memory_type = add_type(module, "Memory", memory_spec);
  tensor_type = add_type(module, "Tensor", tensor_spec);
  return memory_type != nullptr && tensor_type != nullptr;
}

}  // namespace tutti::python
