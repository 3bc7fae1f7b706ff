#pragma once

#include "tutti/adapters/python/native/native.h"

namespace tutti::python {

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
extern PyTypeObject* declared_type;
SharedComm shared_of(PyObject* communicator);

// Methods of a communicator with their arguments, as _communicator.py calls them.

/// Starts an operation. Arguments: (kind, name, first, second, peer, op, prescale, postscale, wire,
/// priority, rows)
PyObject* start_operation(PyObject* self, PyObject* arguments);
/// Starts a group of operations. Arguments: (kind, group, names, arrays, outputs, op, prescale,
/// postscale, wire, priority). If outputs is None, the operation is in place, or its results are in
/// the library's memory.
PyObject* start_group(PyObject* self, PyObject* arguments);
/// Runs a blocking operation. Arguments: (kind, name, first, second, peer, op, rows)
PyObject* run_blocking(PyObject* self, PyObject* arguments);
/// Runs a send and a receive at the same time.
PyObject* run_sendrecv(PyObject* self, PyObject* arguments);

}  // namespace tutti::python
