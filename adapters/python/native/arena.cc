// The type Arena: gradient arrays in the library's memory.

#include <thread>

#include "tutti/adapters/python/native/native.h"

namespace tutti::python {

namespace {

/// Outlives the object for as long as an array of it, or a call on it, is there.
struct ArenaHandle {
  ~ArenaHandle() { tutti_arena_destroy(arena); }
  SharedComm comm;
  tutti_arena_t arena = nullptr;
  std::vector<std::string> names;
  bool step_is_open = false;  // with the GIL
};
using SharedArena = std::shared_ptr<ArenaHandle>;

struct ArenaObject {
  PyObject ob_base;
  SharedArena* shared;
};

PyTypeObject* arena_type = nullptr;

const SharedArena& of(PyObject* self) { return *reinterpret_cast<ArenaObject*>(self)->shared; }

// Waits for what is on its way, and may end the communicator. A step that was given up may be on its
// way until that closes, and whoever collects garbage must not wait for it: a thread does.
void give_up_arena(SharedArena arena) {
  if (!arena || arena.use_count() > 1) return;
  if (arena->step_is_open) {
    std::thread([arena = std::move(arena)]() mutable { arena = nullptr; }).detach();
    return;
  }
  auto comm = arena->comm;
  Py_BEGIN_ALLOW_THREADS;
  arena = nullptr;
  Py_END_ALLOW_THREADS;
  give_up(std::move(comm));
}

void dealloc(PyObject* self) {
  auto* object = reinterpret_cast<ArenaObject*>(self);
  if (object->shared != nullptr) give_up_arena(std::move(*object->shared));
  delete object->shared;
  free_object(self);
}

const char* name_from(PyObject* object) {
  if (PyUnicode_Check(object) == 0) {
    refuse("an array's name must be a str");
    return nullptr;
  }
  return PyUnicode_AsUTF8AndSize(object, nullptr);
}

PyObject* array(PyObject* self, PyObject* key) {
  const char* name = name_from(key);
  tutti_tensor_t tensor = {};
  if (name == nullptr || !check(tutti_arena_array(of(self)->arena, name, &tensor))) return nullptr;
  return make_tensor(tensor, self);
}

PyObject* ready(PyObject* self, PyObject* key) {
  const char* name = name_from(key);
  if (name == nullptr || !check(tutti_arena_ready(of(self)->arena, name))) return nullptr;
  of(self)->step_is_open = true;
  Py_RETURN_NONE;
}

PyObject* leave_out(PyObject* self, PyObject* key) {
  const char* name = name_from(key);
  if (name == nullptr || !check(tutti_arena_leave_out(of(self)->arena, name))) return nullptr;
  Py_RETURN_NONE;
}

PyObject* wait(PyObject* self, PyObject* timeout) {
  double seconds = 0;
  if (!read_timeout(timeout, "an arena", seconds)) return nullptr;
  int goes_on = 0;
  const auto shared = of(self);
  const auto wait_for = [&](double slice) {
    return tutti_arena_wait_for(shared->arena, slice, &goes_on);
  };
  const bool ended_well = wait_in_slices(seconds, wait_for, [&] { return goes_on != 0; });
  if (!ended_well) return nullptr;
  shared->step_is_open = false;
  Py_RETURN_NONE;
}

PyObject* used(PyObject* self, PyObject* key) {
  const char* name = name_from(key);
  int is_used = 0;
  if (name == nullptr || !check(tutti_arena_used(of(self)->arena, name, &is_used))) return nullptr;
  return PyBool_FromLong(is_used);
}

PyObject* get_names(PyObject* self, void*) {
  const auto& names = of(self)->names;
  Reference all(PyTuple_New(static_cast<Py_ssize_t>(names.size())));
  for (size_t i = 0; all && i < names.size(); ++i)
    if (PyTuple_SetItem(all.get(), static_cast<Py_ssize_t>(i),
                        PyUnicode_FromString(names[i].c_str())) != 0)
      return nullptr;
  return all.release();
}

PyObject* no_constructor(PyTypeObject*, PyObject*, PyObject*) {
  return refuse("an Arena is made by Communicator.arena() only");
}

/// "name", "dtype", shape, may be left out.
bool read_array(PyObject* row, std::string& name, std::vector<int64_t>& shape,
                tutti_array_t& array) {
  const char *text = nullptr, *dtype = nullptr;
  PyObject* extents = nullptr;
  int may_be_left_out = 0;
  if (!PyArg_ParseTuple(row, "ssOp:arena", &text, &dtype, &extents, &may_be_left_out)) return false;
  name = text;
  if (!read_numbers(extents, "the shape of an arena's array", shape)) return false;
  array.dtype = dtype_number(dtype);
  if (array.dtype < 0) {
    refuse("\"" + name + "\": \"" + dtype + "\" is no dtype");
    return false;
  }
  if (shape.size() > TUTTI_MAX_DIMENSIONS) {
    refuse("\"" + name + "\" has " + std::to_string(shape.size()) + " dimensions (want at most 8)");
    return false;
  }
  array.dimensions = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), array.shape);
  array.may_be_left_out = may_be_left_out;
  return true;
}

}  // namespace

// (rows, op, prescale, postscale, wire)
PyObject* make_arena(SharedComm comm, PyObject* arguments) {
  PyObject* rows = nullptr;
  tutti_reduce_options_t options = TUTTI_REDUCE_OPTIONS;
  if (!PyArg_ParseTuple(arguments, "O!iddi:arena", &PyList_Type, &rows, &options.op,
                        &options.prescale, &options.postscale, &options.wire))
    return nullptr;
  const auto count = static_cast<size_t>(PyList_Size(rows));
  auto handle = std::make_shared<ArenaHandle>();
  handle->comm = std::move(comm);
  handle->names.resize(count);
  std::vector<tutti_array_t> arrays(count, tutti_array_t TUTTI_ARRAY);
  std::vector<int64_t> shape;
  for (size_t i = 0; i < count; ++i) {
    shape.clear();
    if (!read_array(PyList_GetItem(rows, static_cast<Py_ssize_t>(i)), handle->names[i], shape,
                    arrays[i]))
      return nullptr;
    arrays[i].name = handle->names[i].c_str();
  }
  const auto call = [handle, options, arrays = std::move(arrays)] {
    return tutti_arena_create(handle->comm->comm, arrays.data(), arrays.size(), &options,
                              &handle->arena);
  };
  if (!run_interruptibly(call, nullptr)) return nullptr;
  auto* self = allocate<ArenaObject>(arena_type);
  if (self == nullptr) return nullptr;
  self->shared = new SharedArena(std::move(handle));
  return reinterpret_cast<PyObject*>(self);
}

bool add_arena_type(PyObject* module) {
  static PyMethodDef methods[] = {
      {"ready", ready, METH_O, nullptr},    {"leave_out", leave_out, METH_O, nullptr},
      {"wait", wait, METH_O, nullptr}, {"used", used, METH_O, nullptr},
      {"array", array, METH_O, nullptr},    {nullptr, nullptr, 0, nullptr}};
  static PyGetSetDef attributes[] = {{"names", get_names, nullptr, nullptr, nullptr},
                                     {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(no_constructor)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                                {Py_tp_methods, methods},
                                {Py_tp_getset, attributes},
                                {0, nullptr}};
  static PyType_Spec spec = {"tutti.NativeArena", sizeof(ArenaObject), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  arena_type = add_type(module, "NativeArena", spec);
  return arena_type != nullptr;
}

}  // namespace tutti::python
