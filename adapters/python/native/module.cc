// The extension module `tutti._native`: one for every Python from 3.11 on.

#include "tutti/adapters/python/native/native.h"

namespace tutti::python {

// Defined in communicator.cc.
PyObject* close_all(PyObject*, PyObject*);

PyTypeObject* add_type(PyObject* module, const char* name, PyType_Spec& spec) {
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr || PyModule_AddObjectRef(module, name, type) != 0) return nullptr;
  // This reference is kept, because the functions that make objects use the type until the process
  // ends.
  return reinterpret_cast<PyTypeObject*>(type);
}

std::string text_of(PyObject* unicode) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(unicode, &length);
  return text == nullptr ? std::string() : std::string(text, static_cast<size_t>(length));
}

namespace {

/// Returns a list of the sequence's elements, or null if the object has no elements.
Reference elements_of(PyObject* sequence, const char* what) {
  Reference elements(PySequence_List(sequence));
  if (!elements && PyErr_ExceptionMatches(PyExc_TypeError) != 0) {
    PyErr_Clear();
    refuse(std::string(what) + " must be a sequence");
  }
  return elements;
}

}  // namespace

bool read_texts(PyObject* sequence, const char* what, std::vector<std::string>& texts) {
  const Reference elements = elements_of(sequence, what);
  if (!elements) return false;
  for (Py_ssize_t i = 0; i < PyList_Size(elements.get()); ++i) {
    PyObject* element = PyList_GetItem(elements.get(), i);
    if (PyUnicode_Check(element) == 0) {
      refuse(std::string(what) + " must be texts (str)");
      return false;
    }
    texts.push_back(text_of(element));
    if (PyErr_Occurred() != nullptr) return false;
    if (texts.back().find('\0') != std::string::npos) {
      refuse(std::string(what) + " must not hold a zero byte");
      return false;
    }
  }
  return true;
}

namespace {

/// Returns whether this is a truth value of Python, NumPy or torch. All of these have or had an
/// __index__.
bool is_truth(PyObject* object) {
  if (PyBool_Check(object) != 0) return true;
  if (PyLong_CheckExact(object) != 0) return false;
  const Reference dtype(PyObject_GetAttrString(object, "dtype"));
  const Reference text(dtype ? PyObject_Str(dtype.get()) : nullptr);
  PyErr_Clear();
  return text && text_of(text.get()).find("bool") != std::string::npos;
}

}  // namespace

bool read_whole(PyObject* object, const std::string& what, int64_t least, int64_t most,
                int64_t& number) {
  const Reference index(is_truth(object) ? nullptr : PyNumber_Index(object));
  const long long value = index ? PyLong_AsLongLong(index.get()) : -1;
  if (index && PyErr_Occurred() == nullptr && value >= least && value <= most) {
    number = value;
    return true;
  }
  PyErr_Clear();
  const Reference given(PyObject_Repr(object));
  std::string text = given ? text_of(given.get()) : "";
  PyErr_Clear();
  if (text.empty() || text.size() > 60 || text.find('\n') != std::string::npos)
    text = "such an object";
  refuse(what + " must be a whole number" +
         (index ? " between " + std::to_string(least) + " and " + std::to_string(most) : "") +
         ", not " + text);
  return false;
}

bool read_numbers(PyObject* sequence, const char* what, std::vector<int64_t>& numbers) {
  const Reference elements = elements_of(sequence, what);
  if (!elements) return false;
  for (Py_ssize_t i = 0; i < PyList_Size(elements.get()); ++i)
    if (!read_whole(PyList_GetItem(elements.get(), i), std::string("each of ") + what, INT64_MIN,
                    INT64_MAX, numbers.emplace_back()))
      return false;
  return true;
}

namespace {

// whole(value, what): the modules in Python read whole numbers by this function.
PyObject* whole(PyObject*, PyObject* arguments) {
  PyObject* value = nullptr;
  const char* what = nullptr;
  int64_t number = 0;
  if (!PyArg_ParseTuple(arguments, "Os:whole", &value, &what) ||
      !read_whole(value, what, INT64_MIN, INT64_MAX, number))
    return nullptr;
  return PyLong_FromLongLong(number);
}

// prepare(error_maker, awaiter, main_thread)
PyObject* prepare(PyObject*, PyObject* arguments) {
  PyObject *maker = nullptr, *await = nullptr;
  unsigned long ident = 0;
  if (!PyArg_ParseTuple(arguments, "OOk:prepare", &maker, &await, &ident)) return nullptr;
  set_error_maker(maker);
  set_awaiter(await);
  set_main_thread(ident);
  Py_RETURN_NONE;
}

PyObject* after_fork(PyObject*, PyObject*) {
  reset_entrance();
  set_main_thread(PyThread_get_thread_ident());
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {{"prepare", prepare, METH_VARARGS, nullptr},
                           {"after_fork", after_fork, METH_NOARGS, nullptr},
                           {"whole", whole, METH_VARARGS, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "tutti._native",
                          nullptr,
                          -1,  // the module's state belongs to the process, not to one interpreter
                          functions,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace

}  // namespace tutti::python

PyMODINIT_FUNC PyInit__native(void) {
  using namespace tutti::python;  // NOLINT: only its name keeps this function out of the namespace
  Reference module(PyModule_Create(&definition));
  const bool is_whole = module && add_memory_types(module.get()) && add_work_type(module.get()) &&
                        add_store_types(module.get()) && add_communicator_type(module.get()) &&
                        add_arena_type(module.get()) && add_region_type(module.get()) &&
                        add_kinds(module.get()) &&
                        PyModule_AddStringConstant(module.get(), "version", tutti_version()) == 0;
  return is_whole ? module.release() : nullptr;
}
