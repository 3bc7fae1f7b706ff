#pragma once

// What the parts of the extension share. Unless it says otherwise, a function here is called with
// the GIL, and one that fails has set a Python exception: it returns null, false or -1.

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000  // one extension for Python 3.11 and all that come
#include <Python.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tutti/adapters/c/tutti.h"

struct DLManagedTensor;

namespace tutti::python {

// --- the interpreter -----------------------------------------------------------------------------

/// A thread of the library's own enters the interpreter: it has the GIL while this lives, unless
/// the interpreter exits, which no thread may enter any more.
class Entered {
 public:
  Entered();
  ~Entered();
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  bool entered_;
  PyGILState_STATE state_;
};

/// From atexit: no thread enters any more; returns once all that did are out, or after some
/// seconds.
void close_entrance();
/// In the child of a fork, whose one thread is this.
void reset_entrance();

/// Which thread hears signals.
void set_main_thread(unsigned long ident);
bool is_main_thread();

/// A timeout as programs give it: seconds, or None for ever.
bool read_timeout(PyObject* timeout, const std::string& of, double& seconds);
constexpr double kForever = 1e18;
/// Waits by `wait_for(seconds)`, which is called without the GIL, again and again while that says
/// TUTTI_TIMEOUT and `goes_on()`, until `seconds` are over; the main thread hears signals within a
/// tenth of a second.
bool wait_in_slices(double seconds, const std::function<int(double)>& wait_for,
                    const std::function<bool()>& goes_on);

/// A strong reference, given up with the GIL.
class Reference {
 public:
  Reference() = default;
  explicit Reference(PyObject* owned) : object_(owned) {}
  static Reference to(PyObject* borrowed) { return Reference(Py_NewRef(borrowed)); }
  Reference(Reference&& other) noexcept : object_(other.release()) {}
  Reference& operator=(Reference&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Reference() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// --- errors --------------------------------------------------------------------------------------

/// What a call of the library said of its failure, in the thread that made it.
struct Failure {
  int status = TUTTI_OK;
  std::string text, tensor;
  int rank = -1;
};

/// Without the GIL too.
Failure failure_of(int status);
/// The function of _errors.py that makes the exceptions. To be set once, as the next one.
void set_error_maker(PyObject* maker);
/// Both return null.
PyObject* raise(const Failure& failure);
PyObject* refuse(const std::string& text);
/// `status` of a call that this thread just made: false, with the exception, unless it is
/// TUTTI_OK.
bool check(int status);
/// The Python exception that is set, as one line; clears it.
std::string take_exception_text();

/// Puts the exception that this thread has raised aside, and restores it at the end. The program's
/// own code may run and raise in between.
class PutAside {
 public:
  PutAside() { PyErr_Fetch(&type_, &value_, &trace_); }
  ~PutAside() { PyErr_Restore(type_, value_, trace_); }
  PutAside(const PutAside&) = delete;
  PutAside& operator=(const PutAside&) = delete;

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

/// Runs what may block for long without the GIL. In the main thread it runs beside it, so that a
/// signal's exception (Ctrl-C) is raised at once: `late` is then called with the GIL not held, when
/// the call has ended well after all.
bool run_interruptibly(std::function<int()> call, std::function<void()> late);

// --- memory --------------------------------------------------------------------------------------

const char* dtype_name(int dtype);
/// -1 for a name that is none; sets no exception.
int dtype_number(const std::string& name);
int64_t item_bytes(int dtype);
/// "f32[3,4]".
std::string describe(const tutti_tensor_t& tensor);

/// One array of the program's: its memory stays where it is until this ends, with the GIL.
class Given {
 public:
  Given() = default;
  Given(Given&& other) noexcept { *this = std::move(other); }
  Given& operator=(Given&& other) noexcept;
  ~Given() { release(); }
  /// `what` names it in errors.
  bool read(PyObject* object, bool writable, const std::string& what);
  void release();

  tutti_tensor_t tensor = {};

 private:
  bool read_buffer(PyObject* object, bool writable, const std::string& what);
  bool read_dlpack(PyObject* object, const std::string& what);

  Reference object_;
  std::unique_ptr<Py_buffer> buffer_;
  DLManagedTensor* managed_ = nullptr;
};

/// Of a Tensor or Memory; null if the object is none.
const tutti_tensor_t* known_tensor(PyObject* object);
/// A Tensor that keeps `owner` alive.
PyObject* make_tensor(const tutti_tensor_t& tensor, PyObject* owner);

// --- handles -------------------------------------------------------------------------------------

/// Shared by a communicator, its works and its arenas, so that it outlives what uses it.
struct Comm {
  explicit Comm(tutti_comm_t made) : comm(made) {}
  ~Comm() { tutti_destroy(comm); }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  const tutti_comm_t comm;
};
using SharedComm = std::shared_ptr<Comm>;
/// Gives a share up; the last one ends the communicator, without the GIL.
void give_up(SharedComm comm);

/// Its last share, in whatever thread and with the GIL or without, ends the store.
using SharedStore = std::shared_ptr<tutti_store>;
/// Null if the object is no store.
SharedStore native_store(PyObject* store);

/// What result() is of a Work that is done.
enum class Result { nothing, object, output, outputs, number };

/// What a Work holds beside the operation.
struct WorkBody {
  std::string name;
  SharedComm comm;
  std::vector<Given> given;
  Reference object;  // Result::object
  Result result = Result::nothing;
  size_t output_count = 0;
};
PyObject* make_work(tutti_work_t work, std::unique_ptr<WorkBody> body);
void set_awaiter(PyObject* awaiter);

// --- types ---------------------------------------------------------------------------------------

bool add_memory_types(PyObject* module);
bool add_work_type(PyObject* module);
bool add_store_types(PyObject* module);
bool add_communicator_type(PyObject* module);
bool add_arena_type(PyObject* module);
bool add_region_type(PyObject* module);
/// A Tensor of bytes that keeps its region alive.
PyObject* make_region(SharedComm comm, int64_t bytes);
PyObject* make_arena(SharedComm comm, PyObject* arguments);
/// A type of the module, kept for its makers.
PyTypeObject* add_type(PyObject* module, const char* name, PyType_Spec& spec);
/// Of a type above; the rest of the object is zero.
template <class Object>
Object* allocate(PyTypeObject* type) {
  const auto make = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  return reinterpret_cast<Object*>(make(type, 0));
}
inline void free_object(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}
/// The settings of create: a sequence of "name=value".
bool read_texts(PyObject* sequence, const char* what, std::vector<std::string>& texts);
/// Reads a whole number that the program gave. Nothing is converted to one: a float, a text or a
/// truth value is refused.
bool read_whole(PyObject* object, const std::string& what, int64_t least, int64_t most,
                int64_t& number);
bool read_numbers(PyObject* sequence, const char* what, std::vector<int64_t>& numbers);
/// The following are converters for PyArg_ParseTuple ("O&" into an int), which call read_whole().
inline int read_int(PyObject* object, const char* what, void* place) {
  int64_t number = 0;
  if (!read_whole(object, what, INT32_MIN, INT32_MAX, number)) return 0;
  *static_cast<int*>(place) = static_cast<int>(number);
  return 1;
}
inline int as_rank(PyObject* object, void* place) { return read_int(object, "a rank", place); }
inline int as_size(PyObject* object, void* place) { return read_int(object, "a size", place); }
inline int as_priority(PyObject* object, void* place) {
  return read_int(object, "a priority", place);
}
inline int as_color(PyObject* object, void* place) {
  return read_int(object, "a color or key of split()", place);
}
inline int as_index(PyObject* object, void* place) { return read_int(object, "an index", place); }
std::string text_of(PyObject* unicode);

}  // namespace tutti::python
