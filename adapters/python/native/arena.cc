// The type Arena: gradient arrays in the library's memory.

#include <thread>

#include "tutti/adapters/python/native/native.h"

namespace tutti::python {

namespace {

/// Owns the arena. The Python object, its arrays and the calls on it share this handle.
struct ArenaHandle {
  ~ArenaHandle() { tutti_arena_destroy(arena); }
  SharedComm comm;
  tutti_arena_t arena = nullptr;
  std::vector<std::string> names;
  // The following members need the GIL.
  bool step_is_open = false;
  bool listens = true;         // false: hooks do nothing
  std::vector<bool> has_come;  // true: a hook announced the array in this step
  size_t come = 0;             // number of announced arrays
};
using SharedArena = std::shared_ptr<ArenaHandle>;

struct ArenaObject {
  PyObject ob_base;
  SharedArena* shared;
};

PyTypeObject* arena_type = nullptr;
PyTypeObject* hook_type = nullptr;
PyObject* grad_name = nullptr;

const SharedArena& of(PyObject* self) { return *reinterpret_cast<ArenaObject*>(self)->shared; }

// Releases a share of the arena. The last release waits for the reductions under way, and may
// destroy the communicator. The reductions of a step that was given up may last until the
// communicator closes. Garbage collection must not wait for that, so another thread does.
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

// --- autograd's hooks ----------------------------------------------------------------------------

/// The object that autograd calls when a gradient is complete. A Python function would take as much
/// time as the exchange if a model has a thousand small tensors. The object is part of reference
/// cycles, so the garbage collector must see its references.
struct HookObject {
  PyObject ob_base;
  SharedArena* shared;
  size_t index;
  PyObject *parameter, *view, *begin, *elsewhere;
};

HookObject* hook_of(PyObject* self) { return reinterpret_cast<HookObject*>(self); }

// Runs when autograd has added to a parameter's gradient, which usually is the array itself. If
// autograd has put another tensor into `grad`, this calls elsewhere().
PyObject* call_hook(PyObject* self, PyObject*, PyObject*) {
  auto* hook = hook_of(self);
  const SharedArena shared = *hook->shared;
  if (!shared->listens) Py_RETURN_NONE;
  if (shared->come == 0 && !Reference(PyObject_CallNoArgs(hook->begin))) return nullptr;
  const Reference gradient(PyObject_GetAttr(hook->parameter, grad_name));
  if (!gradient) return nullptr;
  if (gradient.get() != hook->view && !Reference(PyObject_CallNoArgs(hook->elsewhere)))
    return nullptr;
  if (!shared->has_come[hook->index]) {
    shared->has_come[hook->index] = true;
    ++shared->come;
  }
  if (!check(tutti_arena_ready(shared->arena, shared->names[hook->index].c_str()))) return nullptr;
  shared->step_is_open = true;
  Py_RETURN_NONE;
}

int traverse_hook(PyObject* self, visitproc visit, void* arg) {
  auto* hook = hook_of(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(hook->parameter);
  Py_VISIT(hook->view);
  Py_VISIT(hook->begin);
  Py_VISIT(hook->elsewhere);
  return 0;
}

int clear_hook(PyObject* self) {
  auto* hook = hook_of(self);
  Py_CLEAR(hook->parameter);
  Py_CLEAR(hook->view);
  Py_CLEAR(hook->begin);
  Py_CLEAR(hook->elsewhere);
  return 0;
}

void dealloc_hook(PyObject* self) {
  PyObject_GC_UnTrack(self);
  auto* hook = hook_of(self);
  static_cast<void>(clear_hook(self));
  if (hook->shared != nullptr) give_up_arena(std::move(*hook->shared));
  delete hook->shared;
  free_object(self);
}

// hook(index, parameter, view, begin, elsewhere). The first hook of a step calls begin(). A hook
// calls elsewhere() if its parameter's `grad` is not `view`.
PyObject* make_hook(PyObject* self, PyObject* arguments) {
  Py_ssize_t index = 0;
  PyObject *parameter = nullptr, *view = nullptr, *begin = nullptr, *elsewhere = nullptr;
  if (!PyArg_ParseTuple(arguments, "nOOOO:hook", &index, &parameter, &view, &begin, &elsewhere))
    return nullptr;
  const auto& shared = of(self);
  if (index < 0 || static_cast<size_t>(index) >= shared->names.size())
    return refuse("an arena of " + std::to_string(shared->names.size()) + " arrays has no array " +
                  std::to_string(index));
  auto* hook = allocate<HookObject>(hook_type);
  if (hook == nullptr) return nullptr;
  hook->shared = new SharedArena(shared);
  hook->index = static_cast<size_t>(index);
  hook->parameter = Py_NewRef(parameter);
  hook->view = Py_NewRef(view);
  hook->begin = Py_NewRef(begin);
  hook->elsewhere = Py_NewRef(elsewhere);
  return reinterpret_cast<PyObject*>(hook);
}

// Returns the indices of the arrays that no hook announced in this step. Then the hooks' next step
// begins.
PyObject* take_missing(PyObject* self, PyObject*) {
  auto& arena = *of(self);
  Reference missing(PyList_New(0));
  for (size_t i = 0; missing && arena.come < arena.names.size() && i < arena.names.size(); ++i) {
    if (arena.has_come[i]) continue;
    const Reference number(PyLong_FromSize_t(i));
    if (!number || PyList_Append(missing.get(), number.get()) != 0) return nullptr;
  }
  arena.has_come.assign(arena.names.size(), false);
  arena.come = 0;
  return missing.release();
}

PyObject* has_begun(PyObject* self, void*) { return PyBool_FromLong(of(self)->come > 0); }
PyObject* get_listens(PyObject* self, void*) { return PyBool_FromLong(of(self)->listens); }
int set_listens(PyObject* self, PyObject* value, void*) {
  const int listens = value == nullptr ? 0 : PyObject_IsTrue(value);
  if (listens < 0) return -1;
  of(self)->listens = listens != 0;
  return 0;
}

// -------------------------------------------------------------------------------------------------

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

/// Reads a row: name, dtype, shape, and whether the array may be left out.
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
    refuse("\"" + name + "\": \"" + dtype + "\" is not a dtype");
    return false;
  }
  if (shape.size() > TUTTI_MAX_DIMENSIONS) {
    refuse("\"" + name + "\" has " + std::to_string(shape.size()) +
           " dimensions (at most 8 are possible)");
    return false;
  }
  array.dimensions = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), array.shape);
  array.may_be_left_out = may_be_left_out;
  return true;
}

}  // namespace

// The arguments are (rows, op, prescale, postscale, wire).
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
  handle->has_come.resize(count);
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
  static PyMethodDef methods[] = {{"ready", ready, METH_O, nullptr},
                                  {"leave_out", leave_out, METH_O, nullptr},
                                  {"wait", wait, METH_O, nullptr},
                                  {"used", used, METH_O, nullptr},
                                  {"array", array, METH_O, nullptr},
                                  {"hook", make_hook, METH_VARARGS, nullptr},
                                  {"take_missing", take_missing, METH_NOARGS, nullptr},
                                  {nullptr, nullptr, 0, nullptr}};
  static PyGetSetDef attributes[] = {{"names", get_names, nullptr, nullptr, nullptr},
                                     {"has_begun", has_begun, nullptr, nullptr, nullptr},
                                     {"listens", get_listens, set_listens, nullptr, nullptr},
                                     {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(no_constructor)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                                {Py_tp_methods, methods},
                                {Py_tp_getset, attributes},
                                {0, nullptr}};
  static PyType_Spec spec = {"tutti.NativeArena", sizeof(ArenaObject), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  arena_type = add_type(module, "NativeArena", spec);
  static PyType_Slot hook_slots[] = {{Py_tp_new, reinterpret_cast<void*>(no_constructor)},
                                     {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_hook)},
                                     {Py_tp_traverse, reinterpret_cast<void*>(traverse_hook)},
                                     {Py_tp_clear, reinterpret_cast<void*>(clear_hook)},
                                     {Py_tp_call, reinterpret_cast<void*>(call_hook)},
                                     {0, nullptr}};
  static PyType_Spec hook_spec = {"tutti.NativeHook", sizeof(HookObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, hook_slots};
  hook_type = add_type(module, "NativeHook", hook_spec);
  grad_name = PyUnicode_InternFromString("grad");
  return arena_type != nullptr && hook_type != nullptr && grad_name != nullptr;
}

}  // namespace tutti::python
