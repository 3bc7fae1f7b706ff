// The memory of Communicator.allocate(): a Tensor of bytes over a region, which is freed with the
// last array that uses it.

#include "tutti/adapters/python/native/native.h"

namespace tutti::python {

namespace {

struct RegionObject {
  PyObject ob_base;
  tutti_region_t region;
};

PyTypeObject* region_type = nullptr;

void dealloc_region(PyObject* self) {
  tutti_region_free(reinterpret_cast<RegionObject*>(self)->region);
  free_object(self);
}

PyObject* no_region_constructor(PyTypeObject*, PyObject*, PyObject*) {
  return refuse("memory is allocated by Communicator.allocate() only");
}

}  // namespace

PyObject* make_region(SharedComm comm, int64_t bytes) {
  tutti_region_t region = nullptr;
  if (!check(tutti_allocate(comm->comm, bytes, &region))) return nullptr;
  auto* self = allocate<RegionObject>(region_type);
  if (self == nullptr) {
    tutti_region_free(region);
    return nullptr;
  }
  self->region = region;
  const Reference owner(reinterpret_cast<PyObject*>(self));
  return make_tensor(tutti_vector(tutti_region_data(region), bytes, TUTTI_U8), owner.get());
}

bool add_region_type(PyObject* module) {
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(no_region_constructor)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_region)},
                                {0, nullptr}};
  static PyType_Spec spec = {"tutti.NativeRegion", sizeof(RegionObject), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  region_type = add_type(module, "NativeRegion", spec);
  return region_type != nullptr;
}

}  // namespace tutti::python
