// The type Native: a communicator, whose operations `tutti._communicator` offers by their names.

#include <algorithm>
#include <array>
#include <limits>
#include <thread>

#include "tutti/adapters/python/native/native.h"

namespace tutti::python {

namespace {

struct CommObject {
  PyObject ob_base;
  SharedComm* shared;
};
struct DeclaredObject {
  PyObject ob_base;
  SharedComm* shared;
  std::string* name;
  tutti_name_t handle;
};

PyTypeObject* comm_type = nullptr;
PyTypeObject* declared_type = nullptr;

// All that are open, for the end of the interpreter.
std::mutex open_mutex;
std::vector<std::weak_ptr<Comm>> open_comms;  // guarded by open_mutex

SharedComm shared_of(PyObject* self) { return *reinterpret_cast<CommObject*>(self)->shared; }
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

/// A call that makes a communicator, or none.
template <class Make>
PyObject* made_by(Make&& make) {
  const auto made = std::make_shared<tutti_comm_t>(nullptr);
  const auto call = [made, make] { return make(made.get()); };
  if (!run_interruptibly(call, [made] { tutti_destroy(*made); })) return nullptr;
  if (*made == nullptr) Py_RETURN_NONE;
  return make_comm(*made);
}

// --- life ----------------------------------------------------------------------------------------

// create(settings, store, rank, size, is_thread)
PyObject* create(PyObject*, PyObject* arguments) {
  PyObject *lines = nullptr, *store = nullptr;
  int rank = 0, size = 0, is_thread = 0;
  if (!PyArg_ParseTuple(arguments, "OOiip:create", &lines, &store, &rank, &size, &is_thread))
    return nullptr;
  std::vector<std::string> settings;
  if (!read_texts(lines, "the settings", settings)) return nullptr;
  // The call has a share of the store, because it goes on where a signal interrupts this one.
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
  if (!PyArg_ParseTuple(arguments, "ii:split", &color, &key)) return nullptr;
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

PyObject* close(PyObject* self, PyObject*) {
  const auto shared = shared_of(self);
  int status = TUTTI_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = tutti_close(shared->comm);
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

// --- operations ----------------------------------------------------------------------------------

// As _communicator.py counts them.
enum Kind {
  kAllreduce,
  kSparseAllreduce,
  kAllgather,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kReduceScatter,
  kAlltoall,
  kSend,
  kRecv,
  kBarrier,
  kJoin
};

/// What a call said, once its arrays are read.
struct Call {
  tutti_comm_t comm = nullptr;
  int kind = 0, peer = 0;
  const char* name = nullptr;
  tutti_name_t declared = nullptr;
  tutti_reduce_options_t options = TUTTI_REDUCE_OPTIONS;
  const tutti_tensor_t *input = nullptr, *second = nullptr;
  const int64_t* rows = nullptr;
};

int begin(const Call& call, tutti_work_t* work) {
  const auto [comm, kind, peer, name, declared, options, input, second, rows] = call;
  const int op = options.op;
  switch (kind) {
    case kAllreduce:
      if (declared != nullptr)
        return tutti_allreduce_declared(comm, declared, input, &options, work);
      return tutti_allreduce_with(comm, name, input, second ? second : input, &options, work);
    case kSparseAllreduce:
      return tutti_sparse_allreduce(comm, name, input, second, op, work);
    case kAllgather:
      return second != nullptr ? tutti_allgather_into(comm, name, input, second, work)
                               : tutti_allgather(comm, name, input, work);
    case kBroadcast:
      return tutti_broadcast(comm, name, input, peer, work);
    case kReduce:
      return tutti_reduce(comm, name, input, second ? second : input, peer, op, work);
    case kGather:
      return tutti_gather(comm, name, input, peer, work);
    case kScatter:
      return tutti_scatter(comm, name, input, peer, rows, work);
    case kReduceScatter:
      return tutti_reduce_scatter(comm, name, input, &options, rows, work);
    case kAlltoall:
      return tutti_alltoall(comm, name, input, rows, work);
    case kSend:
      return tutti_send(comm, name, input, peer, work);
    case kRecv:
      return tutti_recv(comm, name, input, peer, work);
    case kBarrier:
      return tutti_barrier(comm, name, work);
    default:
      return tutti_join(comm, work);
  }
}

/// Host memory is only handed over; what a device has to do first may take its time.
template <class Begin>
int begin_with(const std::vector<Given>& given, Begin&& begins) {
  const bool on_device = std::any_of(
      given.begin(), given.end(), [](const Given& one) { return one.tensor.device != TUTTI_CPU; });
  if (!on_device) return begins();
  int status = TUTTI_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = begins();
  Py_END_ALLOW_THREADS;
  return status;
}

/// In place, or into `second`: what result() is, and whether the first array is written.
void choose_result(int kind, bool is_root, PyObject* first, PyObject* second, WorkBody& body,
                   bool& writes_first) {
  const bool has_second = second != Py_None && kind != kSparseAllreduce;
  writes_first = kind == kBroadcast || kind == kRecv ||
                 ((kind == kAllreduce || (kind == kReduce && is_root)) && !has_second);
  if (kind == kBarrier || kind == kSend || ((kind == kReduce || kind == kGather) && !is_root))
    return;
  if (kind == kJoin) {
    body.result = Result::number;
  } else if (writes_first || has_second) {
    body.result = Result::object;
    body.object = Reference::to(has_second ? second : first);
    body.copies = has_second && kind >= kGather && kind <= kAlltoall;
  } else if (kind == kSparseAllreduce) {
    body.result = Result::outputs;
    body.output_count = 2;
  } else {
    body.result = Result::output;
  }
}

// start(kind, name, first, second, peer, op, prescale, postscale, wire, priority, rows)
PyObject* start(PyObject* self, PyObject* arguments) {
  Call call;
  PyObject *name = nullptr, *first = nullptr, *second = nullptr, *rows = nullptr;
  if (!PyArg_ParseTuple(arguments, "iOOOiiddiiO:start", &call.kind, &name, &first, &second,
                        &call.peer, &call.options.op, &call.options.prescale,
                        &call.options.postscale, &call.options.wire, &call.options.priority, &rows))
    return nullptr;
  auto body = std::make_unique<WorkBody>();
  body->comm = shared_of(self);
  call.comm = body->comm->comm;
  if (Py_TYPE(name) == declared_type) {
    const auto* declared = reinterpret_cast<DeclaredObject*>(name);
    body->name = *declared->name;
    if (call.kind != kAllreduce || second != Py_None)
      return refuse("\"" + body->name + "\": a declared name is for allreduce in place");
    if (*declared->shared != body->comm)
      return refuse("\"" + body->name + "\" was declared for another Communicator");
    call.declared = declared->handle;
  } else {
    if (PyUnicode_Check(name) == 0) return refuse("an operation's name must be a str");
    body->name = text_of(name);
    if (PyErr_Occurred() != nullptr) return nullptr;
    if (body->name.find('\0') != std::string::npos)
      return refuse("an operation's name must not hold a zero byte");
  }
  call.name = body->name.c_str();
  const bool is_root = call.peer == tutti_rank(call.comm);
  bool writes_first = false;
  choose_result(call.kind, is_root, first, second, *body, writes_first);
  const std::string quoted = "\"" + body->name + "\": ";
  if (call.kind == kScatter && !is_root) first = Py_None;
  if ((call.kind == kReduce || call.kind == kGather) && !is_root) second = Py_None;
  // Pointers to them are taken once both are there.
  const bool has_first = first != Py_None, has_second = second != Py_None;
  if (!has_first && call.kind != kBarrier && call.kind != kJoin && call.kind != kScatter)
    return refuse(quoted + "there is no array (None was given)");
  if (has_first && !body->given.emplace_back().read(first, writes_first, quoted + "the array"))
    return nullptr;
  if (has_second && !body->given.emplace_back().read(second, call.kind != kSparseAllreduce,
                                                     quoted + "the output"))
    return nullptr;
  if (has_first) call.input = &body->given[0].tensor;
  if (has_second) call.second = &body->given.back().tensor;
  if (body->copies && has_second &&
      (call.second->device != TUTTI_CPU || (has_first && call.input->device != TUTTI_CPU)))
    return refuse(quoted +
                  "an output of this operation must lie on the CPU, as its input; leave "
                  "it out and take result() instead");
  std::vector<int64_t> numbers;
  if (rows != Py_None) {
    if (!read_numbers(rows, "the rows", numbers)) return nullptr;
    if (static_cast<int>(numbers.size()) != tutti_size(call.comm))
      return refuse(quoted + std::to_string(numbers.size()) + " row counts were given for " +
                    std::to_string(tutti_size(call.comm)) + " ranks");
    call.rows = numbers.data();
  }
  tutti_work_t work = nullptr;
  const int status = begin_with(body->given, [&] { return begin(call, &work); });
  return check(status) ? make_work(work, std::move(body)) : nullptr;
}

enum Group { kGroupAllreduce, kGroupAllgather, kGroupReduceScatter };

// start_group(kind, group, names, arrays, op, prescale, postscale, wire, priority)
PyObject* start_group(PyObject* self, PyObject* arguments) {
  int kind = 0;
  const char* group = nullptr;
  PyObject *names = nullptr, *arrays = nullptr;
  tutti_reduce_options_t options = TUTTI_REDUCE_OPTIONS;
  if (!PyArg_ParseTuple(arguments, "isOO!iddii:start_group", &kind, &group, &names, &PyList_Type,
                        &arrays, &options.op, &options.prescale, &options.postscale, &options.wire,
                        &options.priority))
    return nullptr;
  std::vector<std::string> texts;
  if (!read_texts(names, "the names", texts)) return nullptr;
  auto body = std::make_unique<WorkBody>();
  body->comm = shared_of(self);
  body->name = group;
  std::vector<const char*> pointers;
  std::vector<tutti_tensor_t> tensors;
  body->given.resize(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    PyObject* array = PyList_GetItem(arrays, static_cast<Py_ssize_t>(i));
    if (array == nullptr ||
        !body->given[i].read(array, kind == kGroupAllreduce, "\"" + texts[i] + "\": the array"))
      return nullptr;
    pointers.push_back(texts[i].c_str());
    tensors.push_back(body->given[i].tensor);
  }
  body->result = kind == kGroupAllreduce ? Result::object : Result::outputs;
  body->output_count = texts.size();
  if (kind == kGroupAllreduce) body->object = Reference::to(arrays);
  const auto comm = body->comm->comm;
  tutti_work_t work = nullptr;
  const int status = begin_with(body->given, [&] {
    if (kind == kGroupAllreduce)
      return tutti_grouped_allreduce(comm, group, pointers.data(), tensors.data(), tensors.size(),
                                     &options, &work);
    if (kind == kGroupAllgather)
      return tutti_grouped_allgather(comm, group, pointers.data(), tensors.data(), tensors.size(),
                                     &work);
    return tutti_grouped_reduce_scatter(comm, group, pointers.data(), tensors.data(),
                                        tensors.size(), &options, &work);
  });
  return check(status) ? make_work(work, std::move(body)) : nullptr;
}

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

// --- blocking ------------------------------------------------------------------------------------

// blocking(name, array, op, root): an allreduce, or a broadcast if root is a rank.
PyObject* blocking(PyObject* self, PyObject* arguments) {
  const char* name = nullptr;
  PyObject* array = nullptr;
  int op = 0, root = 0;
  if (!PyArg_ParseTuple(arguments, "sOii:blocking", &name, &array, &op, &root)) return nullptr;
  Given given;
  if (!given.read(array, true, std::string("\"") + name + "\": the array")) return nullptr;
  const auto shared = shared_of(self);
  int status = TUTTI_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = root == std::numeric_limits<int>::min()
               ? tutti_allreduce_blocking(shared->comm, name, &given.tensor, op)
               : tutti_broadcast_blocking(shared->comm, name, &given.tensor, root);
  Py_END_ALLOW_THREADS;
  return check(status) && PyErr_CheckSignals() == 0 ? Py_NewRef(Py_None) : nullptr;
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
  int status = TUTTI_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = tutti_barrier_blocking(shared->comm);
  Py_END_ALLOW_THREADS;
  return check(status) && PyErr_CheckSignals() == 0 ? Py_NewRef(Py_None) : nullptr;
}

// --- what it is and does -------------------------------------------------------------------------

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
  return Py_BuildValue("KKKKKKKKKKKddd", number(now.operations), number(now.tensors),
                       number(now.buckets), number(now.replayed_buckets),
                       number(now.vetoed_buckets), number(now.data_messages),
                       number(now.data_bytes), number(now.control_messages),
                       number(now.control_bytes), number(now.wakeups), number(now.allocations),
                       now.wait_seconds, now.exposed_seconds, now.skew_seconds);
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

void give_up(SharedComm comm) {
  if (!comm || comm.use_count() > 1) return;
  Py_BEGIN_ALLOW_THREADS;
  comm = nullptr;
  Py_END_ALLOW_THREADS;
}

PyObject* close_all(PyObject*, PyObject*) {
  close_entrance();
  std::vector<SharedComm> still_open;
  {
    const std::lock_guard lock(open_mutex);
    for (const auto& weak : open_comms)
      if (auto shared = weak.lock()) still_open.push_back(std::move(shared));
  }
  Py_BEGIN_ALLOW_THREADS;
  // Ranks that are threads of this process may wait for each other's goodbye.
  std::vector<std::thread> closing;
  for (const auto& shared : still_open)
    closing.emplace_back([comm = shared->comm] { tutti_close(comm); });
  for (auto& thread : closing) thread.join();
  Py_END_ALLOW_THREADS;
  for (auto& shared : still_open) give_up(std::move(shared));
  Py_RETURN_NONE;
}

bool add_communicator_type(PyObject* module) {
  static PyMethodDef methods[] = {{"split", split, METH_VARARGS, nullptr},
                                  {"shrink", shrink, METH_VARARGS, nullptr},
                                  {"close", close, METH_NOARGS, nullptr},
                                  {"start", start, METH_VARARGS, nullptr},
                                  {"start_group", start_group, METH_VARARGS, nullptr},
                                  {"declare", declare, METH_VARARGS, nullptr},
                                  {"blocking", blocking, METH_VARARGS, nullptr},
                                  {"allreduce_value", value_blocking, METH_VARARGS, nullptr},
                                  {"barrier_blocking", barrier_blocking, METH_NOARGS, nullptr},
                                  {"numbers", numbers, METH_NOARGS, nullptr},
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
                                    {"close_all", close_all, METH_NOARGS, nullptr},
                                    {nullptr, nullptr, 0, nullptr}};
  comm_type = add_type(module, "Native", spec);
  declared_type = add_type(module, "Declared", declared_spec);
  return comm_type != nullptr && declared_type != nullptr &&
         PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace tutti::python
