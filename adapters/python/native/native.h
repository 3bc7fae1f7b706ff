#pragma once

// Declarations that the parts of the extension share. Unless its comment says otherwise, a function
// here is called with the GIL. If it fails, it sets a Python exception and returns null, false or
// -1.

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000  // one extension for Python 3.11 and all later versions
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

/// Lets a thread of the library enter the interpreter. The thread holds the GIL while this object
/// exists. If the interpreter exits, no thread may enter it any more, and operator bool returns
/// false.
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

/// Lets no more threads enter; atexit calls it. Returns once all threads that entered have left, or
/// after some seconds.
void close_entrance();
/// Called in the child of a fork, whose only thread is the caller.
void reset_entrance();

/// Sets the thread that handles signals.
void set_main_thread(unsigned long ident);
bool is_main_thread();

/// Reads a timeout as programs give it: seconds, or None for no timeout.
bool read_timeout(PyObject* timeout, const std::string& of, double& seconds);
constexpr double kForever = 1e18;
/// Waits until `seconds` have passed, by calling `wait_for(seconds)` without the GIL. Repeats the
/// call as long as it returns TUTTI_TIMEOUT and `goes_on()` is true. The main thread handles
/// signals within a tenth of a second.
bool wait_in_slices(double seconds, const std::function<int(double)>& wait_for,
                    const std::function<bool()>& goes_on);

/// A strong reference. Releasing it needs the GIL.
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

/// The failure of a call of the library, read in the thread that made the call.
struct Failure {
  int status = TUTTI_OK;
  std::string text, tensor;
  int rank = -1;
};

/// May be called without the GIL.
Failure failure_of(int status);
/// Sets the function of _errors.py that makes the exceptions. It is called once.
void set_error_maker(PyObject* maker);
/// raise() and refuse() set an exception and return null.
PyObject* raise(const Failure& failure);
PyObject* refuse(const std::string& text);
/// Returns whether `status`, the result of a call that this thread just made, is TUTTI_OK.
/// Otherwise it sets the exception.
bool check(int status);
/// Returns the text of the current Python exception in one line, and clears the exception.
std::string take_exception_text();

/// Puts this thread's current exception aside and restores it in the destructor. The program's own
/// code may run and raise in between.
class PutAside {
 public:
  PutAside() { PyErr_Fetch(&type_, &value_, &trace_); }
  ~PutAside() { PyErr_Restore(type_, value_, trace_); }
  PutAside(const PutAside&) = delete;
  PutAside& operator=(const PutAside&) = delete;

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

/// Runs a call that may block for long, without the GIL. In the main thread the call runs in
/// another thread, so that a signal's exception (Ctrl-C) is raised immediately. If an interrupted
/// call succeeds after all, `late` is called without the GIL.
bool run_interruptibly(std::function<int()> call, std::function<void()> late);

// --- memory --------------------------------------------------------------------------------------

const char* dtype_name(int dtype);
/// Returns -1 for an unknown name. Sets no exception.
int dtype_number(const std::string& name);
int64_t item_bytes(int dtype);
uint8_t dlpack_code(int dtype);
/// Returns a text such as "f32[3,4]".
std::string describe(const tutti_tensor_t& tensor);

/// An array of the program. Its memory stays valid until this object is destroyed, which needs the
/// GIL.
class Given {
 public:
  Given() = default;
  Given(Given&& other) noexcept { *this = std::move(other); }
  Given& operator=(Given&& other) noexcept;
  ~Given() { release(); }
  /// `what` names the array in errors.
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

/// Returns the tensor of a Tensor or Memory, or null for other objects.
const tutti_tensor_t* known_tensor(PyObject* object);
/// Returns a Tensor that keeps `owner` alive.
PyObject* make_tensor(const tutti_tensor_t& tensor, PyObject* owner);

// --- handles -------------------------------------------------------------------------------------

/// A communicator, shared with its works and arenas so that it outlives them.
struct Comm {
  explicit Comm(tutti_comm_t made) : comm(made) {}
  ~Comm() { tutti_destroy(comm); }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  const tutti_comm_t comm;
};
using SharedComm = std::shared_ptr<Comm>;
/// Releases a share of a communicator. The last release destroys it, without the GIL.
void give_up(SharedComm comm);

/// A share of a store. The last share to be released destroys the store, in any thread and with or
/// without the GIL.
using SharedStore = std::shared_ptr<tutti_store>;
/// Returns null if the object is not a store.
SharedStore native_store(PyObject* store);

/// Says what result() of a completed Work returns.
enum class Result { nothing, object, output, outputs, number };

/// The data that a Work holds beside the operation.
struct WorkBody {
  std::string name;
  SharedComm comm;
  std::vector<Given> given;
  Reference object;  // for Result::object
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
/// Adds the numbers of <tutti.h> by which _communicator.py names the kinds of calls.
bool add_kinds(PyObject* module);
/// Returns a Tensor of bytes that keeps its region alive.
PyObject* make_region(SharedComm comm, int64_t bytes);
PyObject* make_arena(SharedComm comm, PyObject* arguments);
/// Adds a type to the module. The functions that make its objects keep the result.
PyTypeObject* add_type(PyObject* module, const char* name, PyType_Spec& spec);
/// Allocates an object of a type that add_type() made. Its fields are zero.
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
/// Reads a sequence of texts, such as the settings of create, "name=value".
bool read_texts(PyObject* sequence, const char* what, std::vector<std::string>& texts);
/// Reads a whole number that the program gave. A float, a text or a truth value is refused, not
/// converted.
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
