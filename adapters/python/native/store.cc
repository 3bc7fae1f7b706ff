// Stores: the library's own, and stores whose functions are the methods of a Python object.

#include "tutti/adapters/python/native/native.h"

namespace tutti::python {

namespace {

struct StoreObject {
  PyObject ob_base;
  SharedStore* store;
};

PyTypeObject* memory_store_type = nullptr;
PyTypeObject* program_store_type = nullptr;

StoreObject* of(PyObject* self) { return reinterpret_cast<StoreObject*>(self); }

// Keys may hold any bytes. Python gets them in the form in which os.fsdecode returns file names.
PyObject* key_of(const char* key) {
  return PyUnicode_DecodeUTF8(key, static_cast<Py_ssize_t>(std::char_traits<char>::length(key)),
                              "surrogateescape");
}

constexpr const char* kExiting = "the interpreter exits";

int failed() { return tutti_fail(TUTTI_UNAVAILABLE, take_exception_text().c_str()); }

/// Calls a method of the program's store, in whichever thread needs the store. `use` reads its
/// result. If the method or `use` raises an exception, its text becomes the error's text.
template <class Use, class... Arguments>
int call(void* context, const char* method, const char* key, Use&& use, const char* format,
         Arguments... arguments) {
  const Entered entered;
  if (!entered) return tutti_fail(TUTTI_UNAVAILABLE, kExiting);
  // The thread may belong to Python and be propagating an exception, which must be kept.
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  int status = TUTTI_OK;
  {
    const Reference text(key_of(key));
    const Reference result(text ? PyObject_CallMethod(static_cast<PyObject*>(context), method,
                                                      format, text.get(), arguments...)
                                : nullptr);
    if (!result || !use(result.get())) status = failed();
  }
  PyErr_Restore(type, value, trace);
  return status;
}

/// Passes the result of a method to the library: bytes, or None if `may_be_none`.
auto to_value(tutti_value_t value, bool may_be_none) {
  return [value, may_be_none](PyObject* result) {
    if (may_be_none && result == Py_None) return true;
    Py_buffer buffer;
    if (PyObject_GetBuffer(result, &buffer, PyBUF_SIMPLE) != 0) return false;
    tutti_value_set(value, buffer.buf, static_cast<size_t>(buffer.len));
    PyBuffer_Release(&buffer);
    return true;
  };
}

bool use_nothing(PyObject*) { return true; }

int get(void* context, const char* key, tutti_value_t value) {
  return call(context, "get", key, to_value(value, true), "O");
}

int compare_set(void* context, const char* key, const void* expected, size_t expected_size,
                const void* desired, size_t desired_size, tutti_value_t value) {
  // The format "z#" accepts a null pointer, but it would pass a str to the method.
  if (expected == nullptr)
    return call(context, "compare_set", key, to_value(value, false), "OOy#", Py_None,
                static_cast<const char*>(desired), static_cast<Py_ssize_t>(desired_size));
  return call(context, "compare_set", key, to_value(value, false), "Oy#y#",
              static_cast<const char*>(expected), static_cast<Py_ssize_t>(expected_size),
              static_cast<const char*>(desired), static_cast<Py_ssize_t>(desired_size));
}

int set(void* context, const char* key, const void* value, size_t size) {
  return call(context, "set", key, use_nothing, "Oy#", static_cast<const char*>(value),
              static_cast<Py_ssize_t>(size));
}

int add(void* context, const char* key, int64_t amount, int64_t* sum) {
  const auto use = [sum](PyObject* result) {
    *sum = PyLong_AsLongLong(result);
    return *sum != -1 || PyErr_Occurred() == nullptr;
  };
  return call(context, "add", key, use, "OL", static_cast<long long>(amount));
}

int wait(void* context, const char* key, double seconds, tutti_value_t value) {
  return call(context, "wait", key, to_value(value, true), "Od", seconds);
}

int erase(void* context, const char* key) { return call(context, "delete", key, use_nothing, "O"); }

int erase_all(void* context, const char* prefix) {
  return call(context, "delete_prefix", prefix, use_nothing, "O");
}

void destroy(void* context) {
  if (const Entered entered; entered) Py_DECREF(static_cast<PyObject*>(context));
}

/// Returns an object that owns the store.
PyObject* make_store(PyTypeObject* type, tutti_store_t store) {
  SharedStore shared(store, tutti_store_destroy);
  auto* self = allocate<StoreObject>(type);
  if (self != nullptr) self->store = new SharedStore(std::move(shared));
  return reinterpret_cast<PyObject*>(self);
}

PyObject* make_program_store(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject* object = nullptr;
  int sets = 0, waits = 0;
  if (!PyArg_ParseTuple(arguments, "Opp:ProgramStore", &object, &sets, &waits)) return nullptr;
  tutti_store_functions_t functions = {};
  functions.struct_size = sizeof functions;
  functions.context = object;
  functions.get = get;
  functions.compare_set = compare_set;
  functions.set = sets != 0 ? set : nullptr;
  functions.add = add;
  functions.wait = waits != 0 ? wait : nullptr;
  functions.erase = erase;
  functions.erase_all = erase_all;
  functions.destroy = destroy;
  tutti_store_t store = nullptr;
  if (!check(tutti_store_create(&functions, &store))) return nullptr;
  Py_INCREF(object);
  return make_store(type, store);
}

PyObject* make_memory_store(PyTypeObject* type, PyObject* arguments, PyObject*) {
  if (!PyArg_ParseTuple(arguments, ":MemoryStore")) return nullptr;
  tutti_store_t store = nullptr;
  return check(tutti_store_create(nullptr, &store)) ? make_store(type, store) : nullptr;
}

void dealloc(PyObject* self) {
  delete of(self)->store;
  free_object(self);
}

}  // namespace

SharedStore native_store(PyObject* store) {
  const auto* type = Py_TYPE(store);
  return type == memory_store_type || type == program_store_type ? *of(store)->store : nullptr;
}

bool add_store_types(PyObject* module) {
  static PyType_Slot memory_slots[] = {{Py_tp_new, reinterpret_cast<void*>(make_memory_store)},
                                       {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                                       {0, nullptr}};
  static PyType_Spec memory_spec = {"tutti.MemoryStore", sizeof(StoreObject), 0, Py_TPFLAGS_DEFAULT,
                                    memory_slots};
  static PyType_Slot program_slots[] = {{Py_tp_new, reinterpret_cast<void*>(make_program_store)},
                                        {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                                        {0, nullptr}};
  static PyType_Spec program_spec = {"tutti.ProgramStore", sizeof(StoreObject), 0,
                                     Py_TPFLAGS_DEFAULT, program_slots};
  memory_store_type = add_type(module, "MemoryStore", memory_spec);
  program_store_type = add_type(module, "ProgramStore", program_spec);
  return memory_store_type != nullptr && program_store_type != nullptr;
}

}  // namespace tutti::python
