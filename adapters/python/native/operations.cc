// The operations of a communicator. They read the arrays and call the C interface.

#include "tutti/adapters/python/native/operations.h"

#include <algorithm>
#include <iterator>

namespace tutti::python {

namespace {

constexpr bool reduces(int kind) {
  return kind == TUTTI_ALLREDUCE || kind == TUTTI_REDUCE || kind == TUTTI_REDUCE_SCATTER ||
         kind == TUTTI_SPARSE_ALLREDUCE;
}

/// A call whose fields point into this object.
struct Call {
  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Sets the tensors, each of which may be null, and the options.
  void take(const tutti_tensor_t* first, const tutti_tensor_t* second) {
    const bool is_sparse = fields.kind == TUTTI_SPARSE_ALLREDUCE;
    (fields.kind == TUTTI_RECV ? fields.output : fields.input) = first;
    if (second != nullptr) (is_sparse ? fields.values : fields.output) = second;
    if (reduces(fields.kind)) fields.options = &options;
  }
  /// Reads one number per rank, or None. Otherwise sets a Python exception and returns false.
  bool read_rows(PyObject* given, tutti_comm_t comm, const std::string& quoted) {
    if (given == Py_None) return true;
    if (!read_numbers(given, "the rows", rows)) return false;
    if (static_cast<int>(rows.size()) != tutti_size(comm)) {
      refuse(quoted + std::to_string(rows.size()) + " row counts were given for " +
             std::to_string(tutti_size(comm)) + " ranks");
      return false;
    }
    fields.rows = rows.data();
    return true;
  }

  tutti_call_t fields = TUTTI_CALL(0);
  tutti_reduce_options_t options = TUTTI_REDUCE_OPTIONS;
  std::vector<int64_t> rows;
};

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
  const bool has_second = second != Py_None && kind != TUTTI_SPARSE_ALLREDUCE;
  writes_first =
      kind == TUTTI_RECV ||
      ((kind == TUTTI_ALLREDUCE || kind == TUTTI_BROADCAST || (kind == TUTTI_REDUCE && is_root)) &&
       !has_second);
  if (kind == TUTTI_BARRIER || kind == TUTTI_SEND ||
      ((kind == TUTTI_REDUCE || kind == TUTTI_GATHER) && !is_root))
    return;
  if (kind == TUTTI_JOIN) {
    body.result = Result::number;
  } else if (writes_first || has_second) {
    body.result = Result::object;
    body.object = Reference::to(has_second ? second : first);
  } else if (kind == TUTTI_SPARSE_ALLREDUCE) {
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
  auto& fields = call.fields;
  auto& options = call.options;
  PyObject *name = nullptr, *first = nullptr, *second = nullptr, *rows = nullptr;
  if (!PyArg_ParseTuple(arguments, "iOOOO&iddiO&O:start", &fields.kind, &name, &first, &second,
                        as_rank, &fields.root, &options.op, &options.prescale, &options.postscale,
                        &options.wire, as_priority, &options.priority, &rows))
    return nullptr;
  const int kind = fields.kind;
  auto body = std::make_unique<WorkBody>();
  body->comm = shared_of(self);
  const auto comm = body->comm->comm;
  if (Py_TYPE(name) == declared_type) {
    const auto* declared = reinterpret_cast<DeclaredObject*>(name);
    body->name = *declared->name;
    const bool is_in_place = kind == TUTTI_ALLREDUCE || kind == TUTTI_BROADCAST;
    const bool needs_output = kind == TUTTI_ALLGATHER || kind == TUTTI_SCATTER ||
                              kind == TUTTI_REDUCE_SCATTER || kind == TUTTI_ALLTOALL;
    if ((is_in_place && second != Py_None) || (needs_output && second == Py_None) ||
        kind == TUTTI_SPARSE_ALLREDUCE || kind == TUTTI_JOIN ||
        (kind == TUTTI_RECV && fields.root == TUTTI_ANY_RANK))
      return refuse("\"" + body->name +
                    "\": a declared name is for allreduce and broadcast in place, and for the "
                    "other kinds with an output");
    if (*declared->shared != body->comm)
      return refuse("\"" + body->name + "\" was declared for another Communicator");
    fields.handle = declared->handle;
  } else {
    if (PyUnicode_Check(name) == 0) return refuse("an operation's name must be a str");
    body->name = text_of(name);
    if (PyErr_Occurred() != nullptr) return nullptr;
    if (body->name.find('\0') != std::string::npos)
      return refuse("an operation's name must not hold a zero byte");
    if (kind != TUTTI_JOIN) fields.name = body->name.c_str();
  }
  const bool is_root = fields.root == tutti_rank(comm);
  bool writes_first = false;
  choose_result(kind, is_root, first, second, *body, writes_first);
  const std::string quoted = "\"" + body->name + "\": ";
  if (kind == TUTTI_SCATTER && !is_root) first = Py_None;
  if ((kind == TUTTI_REDUCE || kind == TUTTI_GATHER) && !is_root) second = Py_None;
  // Pointers to the tensors are taken only after both have been added.
  const bool has_first = first != Py_None, has_second = second != Py_None;
  if (!has_first && kind != TUTTI_BARRIER && kind != TUTTI_JOIN && kind != TUTTI_SCATTER)
    return refuse(quoted + "there is no array (None was given)");
  if (has_first && !body->given.emplace_back().read(first, writes_first, quoted + "the array"))
    return nullptr;
  if (has_second && !body->given.emplace_back().read(second, kind != TUTTI_SPARSE_ALLREDUCE,
                                                     quoted + "the output"))
    return nullptr;
  const auto* input = has_first ? &body->given[0].tensor : nullptr;
  const auto* output = has_second ? &body->given.back().tensor : nullptr;
  tutti_tensor_t shaped;
  if (has_first && has_second && kind >= TUTTI_GATHER && kind <= TUTTI_ALLTOALL) {
    shaped = with_rows_of(*output, *input);
    output = &shaped;
  }
  call.take(input, output);
  if (!call.read_rows(rows, comm, quoted)) return nullptr;
  tutti_work_t work = nullptr;
  const int status = begin_with(body->given, [&] { return tutti_start(comm, &fields, &work); });
  return check(status) ? make_work(work, std::move(body)) : nullptr;
}

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
  const bool has_outputs = outputs != Py_None, is_allreduce = kind == TUTTI_ALLREDUCE;
  if (has_outputs &&
      (PyList_Check(outputs) == 0 || PyList_Size(outputs) != static_cast<Py_ssize_t>(texts.size())))
    return refuse(std::string("group \"") + group + "\": give a list of one output for each array");
  body->given.resize(texts.size() * (has_outputs ? 2 : 1));
  std::vector<tutti_tensor_t> targets(has_outputs ? texts.size() : 0);
  std::vector<tutti_call_t> calls;
  for (size_t i = 0; i < texts.size(); ++i) {
    PyObject* array = PyList_GetItem(arrays, static_cast<Py_ssize_t>(i));
    auto& given = body->given[i];
    if (array == nullptr ||
        !given.read(array, is_allreduce && !has_outputs, "\"" + texts[i] + "\": the array"))
      return nullptr;
    tutti_call_t call = TUTTI_CALL(kind);
    call.name = texts[i].c_str();
    call.input = &given.tensor;
    if (reduces(kind)) call.options = &options;
    calls.push_back(call);
    if (!has_outputs) continue;
    auto& target = body->given[texts.size() + i];
    if (!target.read(PyList_GetItem(outputs, static_cast<Py_ssize_t>(i)), true,
                     "\"" + texts[i] + "\": the output"))
      return nullptr;
    targets[i] = is_allreduce ? target.tensor : with_rows_of(target.tensor, given.tensor);
    calls.back().output = &targets[i];
  }
  const bool is_object = has_outputs || is_allreduce;
  body->result = is_object ? Result::object : Result::outputs;
  body->output_count = texts.size();
  if (is_object) body->object = Reference::to(has_outputs ? outputs : arrays);
  const auto comm = body->comm->comm;
  tutti_work_t work = nullptr;
  const int status = begin_with(body->given, [&] {
    return tutti_start_group(comm, group, calls.data(), calls.size(), &work);
  });
  return check(status) ? make_work(work, std::move(body)) : nullptr;
}

// --- blocking ------------------------------------------------------------------------------------

PyObject* run_blocking(PyObject* self, PyObject* arguments) {
  Call call;
  auto& fields = call.fields;
  PyObject *first = nullptr, *second = nullptr, *rows = nullptr;
  if (!PyArg_ParseTuple(arguments, "isOOO&iO:blocking", &fields.kind, &fields.name, &first, &second,
                        as_rank, &fields.root, &call.options.op, &rows))
    return nullptr;
  const int kind = fields.kind;
  const auto shared = shared_of(self);
  const bool is_root = fields.root == tutti_rank(shared->comm);
  WorkBody said;
  bool writes_first = false;
  choose_result(kind, is_root, first, second, said, writes_first);
  const std::string quoted = std::string("\"") + fields.name + "\": ";
  if (kind == TUTTI_SCATTER && !is_root) first = Py_None;
  if ((kind == TUTTI_REDUCE || kind == TUTTI_GATHER) && !is_root) second = Py_None;
  Given input, output;
  const bool has_first = first != Py_None, has_second = second != Py_None;
  if (!has_first && kind != TUTTI_SCATTER)
    return refuse(quoted + "there is no array (None was given)");
  if (has_first && !input.read(first, writes_first, quoted + "the array")) return nullptr;
  if (has_second && !output.read(second, true, quoted + "the output")) return nullptr;
  const bool has_rows = kind == TUTTI_ALLGATHER || (kind >= TUTTI_GATHER && kind <= TUTTI_ALLTOALL);
  if (has_rows && has_first && has_second)
    output.tensor = with_rows_of(output.tensor, input.tensor);
  call.take(has_first ? &input.tensor : nullptr, has_second ? &output.tensor : nullptr);
  if (!call.read_rows(rows, shared->comm, quoted)) return nullptr;
  int status = TUTTI_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = tutti_run(shared->comm, &fields);
  Py_END_ALLOW_THREADS;
  return check(status) && PyErr_CheckSignals() == 0 ? Py_NewRef(Py_None) : nullptr;
}

PyObject* run_sendrecv(PyObject* self, PyObject* arguments) {
  tutti_call_t send = TUTTI_CALL(TUTTI_SEND), recv = TUTTI_CALL(TUTTI_RECV);
  PyObject *first = nullptr, *second = nullptr;
  if (!PyArg_ParseTuple(arguments, "sOO&sOO&:sendrecv_blocking", &send.name, &first, as_rank,
                        &send.root, &recv.name, &second, as_rank, &recv.root))
    return nullptr;
  const auto shared = shared_of(self);
  Given input, output;
  const auto quoted = [](const char* name) { return std::string("\"") + name + "\": the array"; };
  if (!input.read(first, false, quoted(send.name)) || !output.read(second, true, quoted(recv.name)))
    return nullptr;
  send.input = &input.tensor;
  recv.output = &output.tensor;
  int status = TUTTI_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = tutti_sendrecv(shared->comm, &send, &recv);
  Py_END_ALLOW_THREADS;
  return check(status) && PyErr_CheckSignals() == 0 ? Py_NewRef(Py_None) : nullptr;
}

// --- numbers -------------------------------------------------------------------------------------

bool add_kinds(PyObject* module) {
  constexpr struct {
    const char* name;
    int kind;
  } kKinds[] = {{"ALLREDUCE", TUTTI_ALLREDUCE},
                {"ALLGATHER", TUTTI_ALLGATHER},
                {"BROADCAST", TUTTI_BROADCAST},
                {"REDUCE", TUTTI_REDUCE},
                {"GATHER", TUTTI_GATHER},
                {"SCATTER", TUTTI_SCATTER},
                {"REDUCE_SCATTER", TUTTI_REDUCE_SCATTER},
                {"ALLTOALL", TUTTI_ALLTOALL},
                {"SEND", TUTTI_SEND},
                {"RECV", TUTTI_RECV},
                {"BARRIER", TUTTI_BARRIER},
                {"JOIN", TUTTI_JOIN},
                {"SPARSE_ALLREDUCE", TUTTI_SPARSE_ALLREDUCE},
                {"ANY_RANK", TUTTI_ANY_RANK}};
  return std::all_of(std::begin(kKinds), std::end(kKinds), [&](const auto& one) {
    return PyModule_AddIntConstant(module, one.name, one.kind) == 0;
  });
}

}  // namespace tutti::python
