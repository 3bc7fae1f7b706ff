// The type Work. It waits without the GIL and handles signals, keeps the arrays until the operation
// is done, and calls back from the library's thread.

#include "tutti/adapters/python/native/native.h"

namespace tutti::python {

namespace {

struct WorkObject {
  PyObject ob_base;
  tutti_work_t work;
  WorkBody* body;
};

PyTypeObject* work_type = nullptr;
PyObject* awaiter = nullptr;

WorkObject* of(PyObject* self) { return reinterpret_cast<WorkObject*>(self); }

// --- the end of an operation ---------------------------------------------------------------------

/// Returns whether a Work that is done ended well, and raises its error if not.
bool end(WorkObject* self) { return check(tutti_work_wait(self->work)); }

// Releases the arrays, which may then be resized or freed.
void let_go(WorkObject* self) { const auto given = std::exchange(self->body->given, {}); }

/// Waits for the operation. Returns false with an exception set, which may be the operation's own.
bool wait(WorkObject* self, double seconds) {
  const auto is_done = [self] { return tutti_work_done(self->work) != 0; };
  // True if the Work was done when the current slice of the wait began. If it ends only during the
  // slice, TUTTI_TIMEOUT may come from the slice. The next call then returns TUTTI_TIMEOUT only if
  // that is the Work's own error.
  bool was_done = is_done();
  const auto wait_for = [&](double slice) {
    was_done = is_done();
    return tutti_work_wait_for(self->work, slice);
  };
  if (!was_done && !wait_in_slices(seconds, wait_for, [&] { return !was_done; })) {
    if (is_done()) let_go(self);
    return false;
  }
  const bool ended_well = end(self);
  let_go(self);
  return ended_well;
}

PyObject* output_at(WorkObject* self, size_t index) {
  tutti_tensor_t tensor = {};
  if (!check(tutti_work_output(self->work, index, &tensor))) return nullptr;
  return make_tensor(tensor, reinterpret_cast<PyObject*>(self));
}

PyObject* result_of(WorkObject* self) {
  const auto& body = *self->body;
  switch (body.result) {
    case Result::nothing:
      break;
    case Result::object:
      return Py_NewRef(body.object.get());
    case Result::output:
      return output_at(self, 0);
    case Result::outputs: {
      Reference all(PyTuple_New(static_cast<Py_ssize_t>(body.output_count)));
      for (size_t i = 0; all && i < body.output_count; ++i) {
        PyObject* one = output_at(self, i);
        if (one == nullptr || PyTuple_SetItem(all.get(), static_cast<Py_ssize_t>(i), one) != 0)
          return nullptr;
      }
      return all.release();
    }
    case Result::number: {
      tutti_tensor_t tensor = {};
      if (!check(tutti_work_output(self->work, 0, &tensor))) return nullptr;
      return PyLong_FromLongLong(*static_cast<int64_t*>(tensor.data));
    }
  }
  Py_RETURN_NONE;
}

// --- methods -------------------------------------------------------------------------------------

PyObject* wait_method(PyObject* self, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"timeout", nullptr};
  PyObject* timeout = Py_None;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O:wait", const_cast<char**>(names),
                                   &timeout))
    return nullptr;
  double seconds = 0;
  if (!read_timeout(timeout, "\"" + of(self)->body->name + "\"", seconds)) return nullptr;
  return wait(of(self), seconds) ? result_of(of(self)) : nullptr;
}

PyObject* result_method(PyObject* self, PyObject*) {
  return wait(of(self), kForever) ? result_of(of(self)) : nullptr;
}

PyObject* done_method(PyObject* self, PyObject*) {
  auto* object = of(self);
  if (tutti_work_done(object->work) == 0) Py_RETURN_FALSE;
  Py_RETURN_TRUE;
}

PyObject* exception_method(PyObject* self, PyObject*) {
  auto* object = of(self);
  if (tutti_work_done(object->work) == 0)
    return refuse("\"" + object->body->name + "\" is not done; wait() first");
  if (end(object)) Py_RETURN_NONE;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return value;
}

PyObject* output_method(PyObject* self, PyObject* arguments) {
  Py_ssize_t index = 0;
  if (!PyArg_ParseTuple(arguments, "|n:output", &index)) return nullptr;
  if (index < 0)
    return refuse("\"" + of(self)->body->name + "\" has no output " + std::to_string(index));
  return wait(of(self), kForever) ? output_at(of(self), static_cast<size_t>(index)) : nullptr;
}

PyObject* received_method(PyObject* self, PyObject*) {
  if (!wait(of(self), kForever)) return nullptr;
  size_t count = 0;
  if (!check(tutti_work_received(of(self)->work, nullptr, 0, &count))) return nullptr;
  std::vector<int64_t> rows(count);
  if (!check(tutti_work_received(of(self)->work, rows.data(), count, &count))) return nullptr;
  Reference all(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; all && i < count; ++i)
    if (PyTuple_SetItem(all.get(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(rows[i])) != 0)
      return nullptr;
  return all.release();
}

// --- callbacks -----------------------------------------------------------------------------------

struct Callback {
  Reference work, function;
};

// Runs in the library's thread, or in the thread that registers the callback. Once the interpreter
// exits, the objects that the callback holds cannot be freed.
void call_back(void* context, int) {
  auto* callback = static_cast<Callback*>(context);
  const Entered entered;
  if (!entered) return;
  {
    const PutAside raised_before;
    const Reference result(
        PyObject_CallFunctionObjArgs(callback->function.get(), callback->work.get(), nullptr));
    if (!result) PyErr_WriteUnraisable(callback->function.get());
  }
  delete callback;
}

PyObject* add_done_callback(PyObject* self, PyObject* function) {
  if (PyCallable_Check(function) == 0)
    return refuse("\"" + of(self)->body->name + "\": a callback must be callable");
  auto callback = std::make_unique<Callback>();
  callback->work = Reference::to(self);
  callback->function = Reference::to(function);
  const int status = tutti_work_then(of(self)->work, call_back, callback.get());
  if (!check(status)) return nullptr;
  static_cast<void>(callback.release());
  Py_RETURN_NONE;
}

// --- a Work without an owner ---------------------------------------------------------------------

// The operation still uses the arrays. They are released when it is done.
void end_orphan(void* context, int status) {
  const Entered entered;
  if (!entered) return;
  std::unique_ptr<WorkBody> body(static_cast<WorkBody*>(context));
  const bool is_common = status == TUTTI_CLOSED || status == TUTTI_PEER_LOST ||
                         status == TUTTI_PEER_SILENT || status == TUTTI_PEER_LEFT;
  const PutAside raised_before;
  // The communicator's next call raises an error that ended the whole communicator. Only other
  // errors are printed here.
  if (status != TUTTI_OK && !is_common) {
    check(status);
    PyErr_WriteUnraisable(nullptr);
  }
  auto comm = std::move(body->comm);
  body = nullptr;
  give_up(std::move(comm));
}

void dealloc(PyObject* self) {
  auto* object = of(self);
  auto* body = object->body;
  if (object->work != nullptr) {
    // In a forked process the callback cannot be registered, and the body's objects stay until the
    // process ends.
    if (tutti_work_done(object->work) == 0) {
      static_cast<void>(tutti_work_then(object->work, end_orphan, body));
      body = nullptr;
    }
    tutti_work_release(object->work);
  }
  if (body != nullptr) {
    auto comm = std::move(body->comm);
    delete body;
    give_up(std::move(comm));
  }
  free_object(self);
}

PyObject* source_method(PyObject* self, PyObject*) {
  int source = -1;
  if (!wait(of(self), kForever) || !check(tutti_work_source(of(self)->work, &source)))
    return nullptr;
  return PyLong_FromLong(source);
}

PyObject* await(PyObject* self) { return PyObject_CallFunctionObjArgs(awaiter, self, nullptr); }

PyObject* get_name(PyObject* self, void*) {
  return PyUnicode_FromString(of(self)->body->name.c_str());
}

PyObject* represent(PyObject* self) {
  return PyUnicode_FromFormat("<tutti.Work \"%s\"%s>", of(self)->body->name.c_str(),
                              tutti_work_done(of(self)->work) != 0 ? ", done" : "");
}

PyObject* no_constructor(PyTypeObject*, PyObject*, PyObject*) {
  return refuse("a Work is made by the operations of a Communicator only");
}

}  // namespace

PyObject* make_work(tutti_work_t work, std::unique_ptr<WorkBody> body) {
  auto* self = allocate<WorkObject>(work_type);
  if (self == nullptr) {
    // The operation has begun, so its memory must stay. None of it is freed.
    static_cast<void>(body.release());
    return nullptr;
  }
  self->work = work;
  self->body = body.release();
  return reinterpret_cast<PyObject*>(self);
}

void set_awaiter(PyObject* function) { awaiter = Py_NewRef(function); }

bool add_work_type(PyObject* module) {
  static PyMethodDef methods[] = {
      {"wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(wait_method)),
       METH_VARARGS | METH_KEYWORDS, nullptr},
      {"done", done_method, METH_NOARGS, nullptr},
      {"exception", exception_method, METH_NOARGS, nullptr},
      {"result", result_method, METH_NOARGS, nullptr},
      {"output", output_method, METH_VARARGS, nullptr},
      {"received_counts", received_method, METH_NOARGS, nullptr},
      {"source", source_method, METH_NOARGS, nullptr},
      {"add_done_callback", add_done_callback, METH_O, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  static PyGetSetDef attributes[] = {{"name", get_name, nullptr, nullptr, nullptr},
                                     {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(no_constructor)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                                {Py_tp_methods, methods},
                                {Py_tp_getset, attributes},
                                {Py_tp_repr, reinterpret_cast<void*>(represent)},
                                {Py_am_await, reinterpret_cast<void*>(await)},
                                {0, nullptr}};
  static PyType_Spec spec = {"tutti.Work", sizeof(WorkObject), 0, Py_TPFLAGS_DEFAULT, slots};
  work_type = add_type(module, "Work", spec);
  return work_type != nullptr;
}

}  // namespace tutti::python
