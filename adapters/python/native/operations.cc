// The operations of a communicator. They read the arrays and call the C interface.

#include "tutti/adapters/python/native/operations.h"

#include <algorithm>

namespace tutti::python {

namespace {

// The values must equal those in _communicator.py.
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
  kJoin,
  kRecvAny
};

/// The arguments of a call, once its arrays are read.
struct Call {
  tutti_comm_t comm = nullptr;
  int kind = 0, peer = 0;
  const char* name = nullptr;
  tutti_name_t declared = nullptr;
  tutti_reduce_options_t options = TUTTI_REDUCE_OPTIONS;
  const tutti_tensor_t *input = nullptr, *second = nullptr;
  const int64_t* rows = nullptr;
};

/// Starts an operation by a handle of declare(), with results in the caller's memory.
int begin_declared(const Call& call, tutti_work_t* work) {
  const auto [comm, kind, peer, name, declared, options, input, second, rows] = call;
  switch (kind) {
    case kAllreduce:
      return tutti_allreduce_declared(comm, declared, input, &options, work);
    case kAllgather:
      return tutti_allgather_declared(comm, declared, input, second, work);
    case kBroadcast:
      return tutti_broadcast_declared(comm, declared, input, peer, work);
    case kReduce:
      return tutti_reduce_declared(comm, declared, input, second ? second : input, peer, options.op,
                                   work);
    case kGather:
      return tutti_gather_declared(comm, declared, input, second, peer, work);
    case kScatter:
      return tutti_scatter_declared(comm, declared, input, second, peer, rows, work);
    case kReduceScatter:
      return tutti_reduce_scatter_declared(comm, declared, input, second, &options, rows, work);
    case kAlltoall:
      return tutti_alltoall_declared(comm, declared, input, second, rows, work);
    case kSend:
      return tutti_send_declared(comm, declared, input, peer, work);
    case kRecv:
      return tutti_recv_declared(comm, declared, input, peer, work);
    default:
      return tutti_barrier_declared(comm, declared, work);
  }
}

int begin(const Call& call, tutti_work_t* work) {
  const auto [comm, kind, peer, name, declared, options, input, second, rows] = call;
  const int op = options.op;
  if (declared != nullptr) return begin_declared(call, work);
  switch (kind) {
    case kAllreduce:
      return tutti_allreduce_with(comm, name, input, second ? second : input, &options, work);
    case kSparseAllreduce:
      return tutti_sparse_allreduce(comm, name, input, second, op, work);
    case kAllgather:
      return second != nullptr ? tutti_allgather_into(comm, name, input, second, work)
                               : tutti_allgather(comm, name, input, work);
    case kBroadcast:
      return second != nullptr ? tutti_broadcast_with(comm, name, input, second, peer, work)
                               : tutti_broadcast(comm, name, input, peer, work);
    case kReduce:
      return tutti_reduce(comm, name, input, second ? second : input, peer, op, work);
    case kGather:
      return second != nullptr ? tutti_gather_into(comm, name, input, second, peer, work)
                               : tutti_gather(comm, name, input, peer, work);
    case kScatter:
      return second != nullptr ? tutti_scatter_into(comm, name, input, second, peer, rows, work)
                               : tutti_scatter(comm, name, input, peer, rows, work);
    case kReduceScatter:
      return second != nullptr
                 ? tutti_reduce_scatter_into(comm, name, input, second, &options, rows, work)
                 : tutti_reduce_scatter(comm, name, input, &options, rows, work);
    case kAlltoall:
      return second != nullptr ? tutti_alltoall_into(comm, name, input, second, rows, work)
                               : tutti_alltoall(comm, name, input, rows, work);
    case kSend:
      return tutti_send(comm, name, input, peer, work);
    case kRecv:
      return tutti_recv(comm, name, input, peer, work);
    case kRecvAny:
      return tutti_recv_any(comm, name, input, work);
    case kBarrier:
      return tutti_barrier(comm, name, work);
    default:
      return tutti_join(comm, work);
  }
}

/// Starts an operation. With host memory this only submits it. With a device's memory it may take
/// long, so it releases the GIL.
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

/// Chooses what result() returns and whether the first array is written. An operation is in place,
/// or writes into `second`.
void choose_result(int kind, bool is_root, PyObject* first, PyObject* second, WorkBody& body,
                   bool& writes_first) {
  const bool has_second = second != Py_None && kind != kSparseAllreduce;
  writes_first =
      kind == kRecv || kind == kRecvAny ||
      ((kind == kAllreduce || kind == kBroadcast || (kind == kReduce && is_root)) && !has_second);
  if (kind == kBarrier || kind == kSend || ((kind == kReduce || kind == kGather) && !is_root))
    return;
  if (kind == kJoin) {
    body.result = Result::number;
  } else if (writes_first || has_second) {
    body.result = Result::object;
    body.object = Reference::to(has_second ? second : first);
  } else if (kind == kSparseAllreduce) {
    body.result = Result::outputs;
    body.output_count = 2;
  } else {
    body.result = Result::output;
  }
}

/// Returns the output as rows like those of `like`, if its elements make up whole rows. An output
/// may be given as a flat array.
tutti_tensor_t with_rows_of(const tutti_tensor_t& output, const tutti_tensor_t& like) {
  if (output.dtype != like.dtype || like.dimensions == 0) return output;
  int64_t row = 1, count = 1;
  for (int i = 1; i < like.dimensions; ++i) row *= like.shape[i];
  for (int i = 0; i < output.dimensions; ++i) count *= output.shape[i];
  if (row == 0 || count % row != 0) return output;
  tutti_tensor_t shaped = output;  // `output` may be on another device than `like`
  shaped.dimensions = like.dimensions;
  std::copy_n(like.shape, like.dimensions, shaped.shape);
  shaped.shape[0] = count / row;
  return shaped;
}

}  // namespace

PyObject* start_operation(PyObject* self, PyObject* arguments) {
  Call call;
  PyObject *name = nullptr, *first = nullptr, *second = nullptr, *rows = nullptr;
  if (!PyArg_ParseTuple(arguments, "iOOOO&iddiO&O:start", &call.kind, &name, &first, &second,
                        as_rank, &call.peer, &call.options.op, &call.options.prescale,
                        &call.options.postscale, &call.options.wire, as_priority,
                        &call.options.priority, &rows))
    return nullptr;
  auto body = std::make_unique<WorkBody>();
  body->comm = shared_of(self);
  call.comm = body->comm->comm;
  if (Py_TYPE(name) == declared_type) {
    const auto* declared = reinterpret_cast<DeclaredObject*>(name);
    body->name = *declared->name;
    const bool is_in_place = call.kind == kAllreduce || call.kind == kBroadcast;
    const bool needs_output = call.kind == kAllgather || call.kind == kScatter ||
                              call.kind == kReduceScatter || call.kind == kAlltoall;
    if ((is_in_place && second != Py_None) || (needs_output && second == Py_None) ||
        call.kind == kSparseAllreduce || call.kind == kRecvAny || call.kind == kJoin)
      return refuse("\"" + body->name +
                    "\": a declared name is for allreduce and broadcast in place, and for the "
                    "other kinds with an output");
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
  // Pointers to the tensors are taken only after both have been added.
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
  const bool is_into = has_second && call.kind >= kGather && call.kind <= kAlltoall;
  tutti_tensor_t shaped;
  if (is_into && has_first) {
    shaped = with_rows_of(*call.second, *call.input);
    call.second = &shaped;
  }
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

PyObject* start_group(PyObject* self, PyObject* arguments) {
  int kind = 0;
  const char* group = nullptr;
  PyObject *names = nullptr, *arrays = nullptr, *outputs = nullptr;
  tutti_reduce_options_t options = TUTTI_REDUCE_OPTIONS;
  if (!PyArg_ParseTuple(arguments, "isOO!OiddiO&:start_group", &kind, &group, &names, &PyList_Type,
                        &arrays, &outputs, &options.op, &options.prescale, &options.postscale,
                        &options.wire, as_priority, &options.priority))
    return nullptr;
  std::vector<std::string> texts;
  if (!read_texts(names, "the names", texts)) return nullptr;
  auto body = std::make_unique<WorkBody>();
  body->comm = shared_of(self);
  body->name = group;
  std::vector<const char*> pointers;
  std::vector<tutti_tensor_t> tensors, targets;
  const bool has_outputs = outputs != Py_None;
  if (has_outputs &&
      (PyList_Check(outputs) == 0 || PyList_Size(outputs) != static_cast<Py_ssize_t>(texts.size())))
    return refuse(std::string("group \"") + group + "\": give a list of one output for each array");
  body->given.resize(texts.size() * (has_outputs ? 2 : 1));
  for (size_t i = 0; i < texts.size(); ++i) {
    PyObject* array = PyList_GetItem(arrays, static_cast<Py_ssize_t>(i));
    if (array == nullptr || !body->given[i].read(array, kind == kGroupAllreduce && !has_outputs,
                                                 "\"" + texts[i] + "\": the array"))
      return nullptr;
    pointers.push_back(texts[i].c_str());
    tensors.push_back(body->given[i].tensor);
    if (!has_outputs) continue;
    auto& target = body->given[texts.size() + i];
    if (!target.read(PyList_GetItem(outputs, static_cast<Py_ssize_t>(i)), true,
                     "\"" + texts[i] + "\": the output"))
      return nullptr;
    targets.push_back(kind == kGroupAllreduce ? target.tensor
                                              : with_rows_of(target.tensor, tensors.back()));
  }
  const bool is_object = has_outputs || kind == kGroupAllreduce;
  body->result = is_object ? Result::object : Result::outputs;
  body->output_count = texts.size();
  if (is_object) body->object = Reference::to(has_outputs ? outputs : arrays);
  const auto comm = body->comm->comm;
  tutti_work_t work = nullptr;
  const auto begin_into = [&] {
    const size_t count = tensors.size();
    if (kind == kGroupAllreduce)
      return tutti_grouped_allreduce_with(comm, group, pointers.data(), tensors.data(),
                                          targets.data(), count, &options, &work);
    if (kind == kGroupAllgather)
      return tutti_grouped_allgather_into(comm, group, pointers.data(), tensors.data(),
                                          targets.data(), count, &work);
    return tutti_grouped_reduce_scatter_into(comm, group, pointers.data(), tensors.data(),
                                             targets.data(), count, &options, &work);
  };
  const int status = begin_with(body->given, [&] {
    if (has_outputs) return begin_into();
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

// --- blocking ------------------------------------------------------------------------------------

namespace {

int block(const Call& call) {
  const auto [comm, kind, peer, name, declared, options, input, second, rows] = call;
  switch (kind) {
    case kAllreduce:
      return second != nullptr
                 ? tutti_allreduce_blocking_with(comm, name, input, second, options.op)
                 : tutti_allreduce_blocking(comm, name, input, options.op);
    case kBroadcast:
      return tutti_broadcast_blocking(comm, name, input, peer);
    case kReduce:
      return tutti_reduce_blocking(comm, name, input, second ? second : input, peer, options.op);
    case kAllgather:
      return tutti_allgather_blocking(comm, name, input, second, rows);
    case kGather:
      return tutti_gather_blocking(comm, name, input, second, peer, rows);
    case kScatter:
      return tutti_scatter_blocking(comm, name, input, second, peer, rows);
    case kReduceScatter:
      return tutti_reduce_scatter_blocking(comm, name, input, second, options.op, rows);
    case kSend:
      return tutti_send_blocking(comm, name, input, peer);
    case kRecv:
      return tutti_recv_blocking(comm, name, input, peer);
    default:
      return tutti_alltoall_blocking(comm, name, input, second);
  }
}

}  // namespace

PyObject* run_blocking(PyObject* self, PyObject* arguments) {
  Call call;
  PyObject *first = nullptr, *second = nullptr, *rows = nullptr;
  if (!PyArg_ParseTuple(arguments, "isOOO&iO:blocking", &call.kind, &call.name, &first, &second,
                        as_rank, &call.peer, &call.options.op, &rows))
    return nullptr;
  const auto shared = shared_of(self);
  call.comm = shared->comm;
  const bool is_root = call.peer == tutti_rank(call.comm);
  WorkBody said;
  bool writes_first = false;
  choose_result(call.kind, is_root, first, second, said, writes_first);
  const std::string quoted = std::string("\"") + call.name + "\": ";
  if (call.kind == kScatter && !is_root) first = Py_None;
  if ((call.kind == kReduce || call.kind == kGather) && !is_root) second = Py_None;
  Given input, output;
  if (first == Py_None && call.kind != kScatter)
    return refuse(quoted + "there is no array (None was given)");
  if (first != Py_None && !input.read(first, writes_first, quoted + "the array")) return nullptr;
  if (second != Py_None && !output.read(second, true, quoted + "the output")) return nullptr;
  if (first != Py_None) call.input = &input.tensor;
  if (second != Py_None) call.second = &output.tensor;
  const bool has_rows = call.kind == kAllgather || (call.kind >= kGather && call.kind <= kAlltoall);
  if (has_rows && first != Py_None && second != Py_None)
    output.tensor = with_rows_of(output.tensor, input.tensor);
  std::vector<int64_t> numbers;
  if (rows != Py_None) {
    if (!read_numbers(rows, "the rows", numbers)) return nullptr;
    if (static_cast<int>(numbers.size()) != tutti_size(call.comm))
      return refuse(quoted + std::to_string(numbers.size()) + " row counts were given for " +
                    std::to_string(tutti_size(call.comm)) + " ranks");
    call.rows = numbers.data();
  }
  int status = TUTTI_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = block(call);
  Py_END_ALLOW_THREADS;
  return check(status) && PyErr_CheckSignals() == 0 ? Py_NewRef(Py_None) : nullptr;
}

PyObject* run_sendrecv(PyObject* self, PyObject* arguments) {
  const char *send_name = nullptr, *recv_name = nullptr;
  PyObject *first = nullptr, *second = nullptr;
  int to = 0, from = 0;
  if (!PyArg_ParseTuple(arguments, "sOO&sOO&:sendrecv_blocking", &send_name, &first, as_rank, &to,
                        &recv_name, &second, as_rank, &from))
    return nullptr;
  const auto shared = shared_of(self);
  Given input, output;
  const auto quoted = [](const char* name) { return std::string("\"") + name + "\": the array"; };
  if (!input.read(first, false, quoted(send_name)) || !output.read(second, true, quoted(recv_name)))
    return nullptr;
  int status = TUTTI_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = tutti_sendrecv_blocking(shared->comm, send_name, &input.tensor, to, recv_name,
                                   &output.tensor, from);
  Py_END_ALLOW_THREADS;
  return check(status) && PyErr_CheckSignals() == 0 ? Py_NewRef(Py_None) : nullptr;
}

}  // namespace tutti::python
