// The type Native, a communicator. `tutti._communicator` offers its operations by name.

#include <thread>

#include "tutti/adapters/python/native/operations.h"

namespace tutti::python {

namespace {

PyTypeObject* comm_type = nullptr;

// All open communicators, which are closed when the interpreter exits.
std::mutex open_mutex;
std::vector<std::weak_ptr<Comm>> open_comms;  // guarded by open_mutex

tutti_comm_t comm_of(PyObject* self) { return shared_of(self)->comm; }

PyObject* make_comm(tutti_comm_t comm) {
  auto shared = std::make_shared<Comm>(comm);
  {
    const std::lock_guard lock(open_mutex);
    std::erase_if(open_comms, [](const auto& other) { return other.expired(); });
    open_comms.push_back(shared);
  }
  auto* self = allocate<CommObject>(comm_type);
  if (self == nullptr) {
    give_up(std::move(shared));
    return nullptr;
  }
  self->shared = new SharedComm(std::move(shared));
  return reinterpret_cast<PyObject*>(self);
}

/// Runs a call that makes a communicator. Returns None if it makes none.
template <class Make>
PyObject* made_by(Make&& make) {
  const auto made = std::make_shared<tutti_comm_t>(nullptr);
  const auto call = [made, make] { return make(made.get()); };
  if (!run_interruptibly(call, [made] { tutti_destroy(*made); })) return nullptr;
  if (*made == nullptr) Py_RETURN_NONE;
  return make_comm(*made);
}

// --- creation and closing ------------------------------------------------------------------------

// create(settings, store, rank, size, is_thread)
PyObject* create(PyObject*, PyObject* arguments) {
  PyObject *lines = nullptr, *store = nullptr;
  int rank = 0, size = 0, is_thread = 0;
  if (!PyArg_ParseTuple(arguments, "OOO&O&p:create", &lines, &store, as_rank, &rank, as_size, &size,
                        &is_thread))
    return nullptr;
  std::vector<std::string> settings;
  if (!read_texts(lines, "the settings", settings)) return nullptr;
  // The call owns a share of the store, because the call continues if a signal interrupts this
  // function.
  const auto native = native_store(store);
  const auto make = [=, settings = std::move(settings)](tutti_comm_t* comm) {
    std::vector<const char*> texts;
    for (const auto& setting : settings) texts.push_back(setting.c_str());
    if (native == nullptr) return tutti_create_with(texts.data(), texts.size(), comm);
    const auto call = is_thread != 0 ? tutti_create_thread : tutti_create_in_store;
    return call(rank, size, native.get(), texts.data(), texts.size(), comm);
  };
  return made_by(make);
}

PyObject* split(PyObject* self, PyObject* arguments) {
  int color = 0, key = 0;
  if (!PyArg_ParseTuple(arguments, "O&O&:split", as_color, &color, as_color, &key)) return nullptr;
  return made_by([shared = shared_of(self), color, key](tutti_comm_t* part) {
    return tutti_split(shared->comm, color, key, part);
  });
}

PyObject* shrink(PyObject* self, PyObject* arguments) {
  double seconds = 0;
  if (!PyArg_ParseTuple(arguments, "d:shrink", &seconds)) return nullptr;
  return made_by([shared = shared_of(self), seconds](tutti_comm_t* survivors) {
    return tutti_shrink(shared->comm, seconds, survivors);
  });
}

// close(error): a text, or None
PyObject* close(PyObject* self, PyObject* arguments) {
  const char* error = nullptr;
  if (!PyArg_ParseTuple(arguments, "z:close", &error)) return nullptr;
  const auto shared = shared_of(self);
  int status = TUTTI_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = tutti_close(shared->comm, error);
  Py_END_ALLOW_THREADS;
  return check(status) ? Py_NewRef(Py_None) : nullptr;
}

void dealloc(PyObject* self) {
  auto* object = reinterpret_cast<CommObject*>(self);
  if (object->shared != nullptr) give_up(std::move(*object->shared));
  delete object->shared;
  free_object(self);
}

void dealloc_declared(PyObject* self) {
  auto* object = reinterpret_cast<DeclaredObject*>(self);
  if (object->shared != nullptr) give_up(std::move(*object->shared));
  delete object->shared;
  delete object->name;
  free_object(self);
}

PyObject* declared_name(PyObject* self, void*) {
  return PyUnicode_FromString(reinterpret_cast<DeclaredObject*>(self)->name->c_str());
}

PyObject* no_constructor(PyTypeObject*, PyObject*, PyObject*) {
  return refuse("this type's objects are made by calls of a Communicator only");
}

// --- names and values ----------------------------------------------------------------------------

PyObject* declare(PyObject* self, PyObject* arguments) {
  const char* name = nullptr;
  PyObject* like = nullptr;
  if (!PyArg_ParseTuple(arguments, "sO:declare", &name, &like)) return nullptr;
  Given given;
  if (!given.read(like, false, std::string("\"") + name + "\": the array")) return nullptr;
  tutti_name_t handle = nullptr;
  if (!check(tutti_declare(comm_of(self), name, &given.tensor, &handle))) return nullptr;
  auto* declared = allocate<DeclaredObject>(declared_type);
  if (declared == nullptr) return nullptr;
  declared->shared = new SharedComm(shared_of(self));
  declared->name = new std::string(name);
  declared->handle = handle;
  return reinterpret_cast<PyObject*>(declared);
}

PyObject* value_blocking(PyObject* self, PyObject* arguments) {
  const char* name = nullptr;
  double value = 0;
  int op = 0;
  if (!PyArg_ParseTuple(arguments, "sdi:allreduce_value", &name, &value, &op)) return nullptr;
  const auto shared = shared_of(self);
  int status = TUTTI_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = tutti_allreduce_value(shared->comm, name, &value, op);
  Py_END_ALLOW_THREADS;
  return check(status) && PyErr_CheckSignals() == 0 ? PyFloat_FromDouble(value) : nullptr;
}

PyObject* barrier_blocking(PyObject* self, PyObject*) {
  const auto shared = shared_of(self);
  const tutti_call_t call = TUTTI_CALL(TUTTI_BARRIER);
  int status = TUTTI_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = tutti_run(shared->comm, &call);
  Py_END_ALLOW_THREADS;
  return check(status) && PyErr_CheckSignals() == 0 ? Py_NewRef(Py_None) : nullptr;
}

// --- properties, statistics and timeline ---------------------------------------------------------

PyObject* numbers(PyObject* self, PyObject*) {
  const auto comm = comm_of(self);
  return Py_BuildValue("iiiiis", tutti_rank(comm), tutti_size(comm), tutti_local_rank(comm),
                       tutti_local_size(comm), tutti_hosts(comm), tutti_backend(comm));
}

PyObject* statistics(PyObject* self, PyObject*) {
  tutti_statistics_t now = {};
  now.struct_size = sizeof now;
  if (!check(tutti_get_statistics(comm_of(self), &now))) return nullptr;
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  return Py_BuildValue(
      "KKKKKKKKKKKdddK", number(now.operations), number(now.tensors), number(now.buckets),
      number(now.replayed_buckets), number(now.vetoed_buckets), number(now.data_messages),
      number(now.data_bytes), number(now.control_messages), number(now.control_bytes),
      number(now.wakeups), number(now.allocations), now.wait_seconds, now.exposed_seconds,
      now.skew_seconds, number(now.copied_bytes));
}

PyObject* allocate_memory(PyObject* self, PyObject* arguments) {
  PyObject* given = nullptr;
  int64_t bytes = 0;
  if (!PyArg_ParseTuple(arguments, "O:allocate", &given) ||
      !read_whole(given, "a number of bytes", INT64_MIN, INT64_MAX, bytes))
    return nullptr;
  return make_region(shared_of(self), bytes);
}

PyObject* start_timeline(PyObject* self, PyObject* arguments) {
  const char* file = nullptr;
  if (!PyArg_ParseTuple(arguments, "s:start_timeline", &file)) return nullptr;
  return check(tutti_start_timeline(comm_of(self), file)) ? Py_NewRef(Py_None) : nullptr;
}

PyObject* stop_timeline(PyObject* self, PyObject*) {
  const auto call = [shared = shared_of(self)] { return tutti_stop_timeline(shared->comm); };
  return run_interruptibly(call, nullptr) ? Py_NewRef(Py_None) : nullptr;
}

PyObject* arena(PyObject* self, PyObject* arguments) {
  return make_arena(shared_of(self), arguments);
}

}  // namespace

PyTypeObject* declared_type = nullptr;

SharedComm shared_of(PyObject* self) { return *reinterpret_cast<CommObject*>(self)->shared; }

void give_up(SharedComm comm) {
  if (!comm || comm.use_count() > 1) return;
  Py_BEGIN_ALLOW_THREADS;
  comm = nullptr;
  Py_END_ALLOW_THREADS;
}

// close_all(error), as close()
PyObject* close_all(PyObject*, PyObject* arguments) {
  const char* error = nullptr;
  if (!PyArg_ParseTuple(arguments, "z:close_all", &error)) return nullptr;
  close_entrance();
  std::vector<SharedComm> still_open;
  {
    const std::lock_guard lock(open_mutex);
    for (const auto& weak : open_comms)
      if (auto shared = weak.lock()) still_open.push_back(std::move(shared));
  }
  Py_BEGIN_ALLOW_THREADS;
  // Ranks that are threads of this process may wait for each other's farewell, so they close at the
  // same time.
  std::vector<std::thread> closing;
  for (const auto& shared : still_open)
    closing.emplace_back([comm = shared->comm, error] { tutti_close(comm, error); });
  for (auto& thread : closing) thread.join();
  Py_END_ALLOW_THREADS;
  for (auto& shared : still_open) give_up(std::move(shared));
  Py_RETURN_NONE;
}

bool add_communicator_type(PyObject* module) {
  static PyMethodDef methods[] = {{"split", split, METH_VARARGS, nullptr},
                                  {"shrink", shrink, METH_VARARGS, nullptr},
                                  {"close", close, METH_VARARGS, nullptr},
                                  {"start", start_operation, METH_VARARGS, nullptr},
                                  {"start_group", start_group, METH_VARARGS, nullptr},
                                  {"declare", declare, METH_VARARGS, nullptr},
                                  {"blocking", run_blocking, METH_VARARGS, nullptr},
                                  {"sendrecv_blocking", run_sendrecv, METH_VARARGS, nullptr},
                                  {"allreduce_value", value_blocking, METH_VARARGS, nullptr},
                                  {"barrier_blocking", barrier_blocking, METH_NOARGS, nullptr},
                                  {"numbers", numbers, METH_NOARGS, nullptr},
                                  {"allocate", allocate_memory, METH_VARARGS, nullptr},
                                  {"statistics", statistics, METH_NOARGS, nullptr},
                                  {"start_timeline", start_timeline, METH_VARARGS, nullptr},
                                  {"stop_timeline", stop_timeline, METH_NOARGS, nullptr},
                                  {"arena", arena, METH_VARARGS, nullptr},
                                  {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(no_constructor)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                                {Py_tp_methods, methods},
                                {0, nullptr}};
  static PyType_Spec spec = {"tutti.Native", sizeof(CommObject), 0, Py_TPFLAGS_DEFAULT, slots};
  static PyGetSetDef attributes[] = {{"name", declared_name, nullptr, nullptr, nullptr},
                                     {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot declared_slots[] = {{Py_tp_new, reinterpret_cast<void*>(no_constructor)},
                                         {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_declared)},
                                         {Py_tp_getset, attributes},
                                         {0, nullptr}};
  static PyType_Spec declared_spec = {"tutti.Declared", sizeof(DeclaredObject), 0,
                                      Py_TPFLAGS_DEFAULT, declared_slots};
  static PyMethodDef functions[] = {{"create", create, METH_VARARGS, nullptr},
                                    {"close_all", close_all, METH_VARARGS, nullptr},
                                    {nullptr, nullptr, 0, nullptr}};
  comm_type = add_type(module, "Native", spec);
  declared_type = add_type(module, "Declared", declared_spec);
  return comm_type != nullptr && declared_type != nullptr &&
         PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace tutti::python
