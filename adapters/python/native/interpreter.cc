// The interaction of the library's threads with Python: which threads may enter the interpreter,
// which thread handles signals, and how a failure becomes an exception.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <system_error>
#include <thread>

#include "tutti/adapters/python/native/native.h"

namespace tutti::python {

namespace {

// These variables belong to the process, like the interpreter itself.
std::atomic<int64_t> inside{0};
std::atomic<bool> is_closed{false};
std::atomic<unsigned long> main_thread{0};
PyObject* error_maker = nullptr;

}  // namespace

// --- the interpreter -----------------------------------------------------------------------------

// A thread that requests the GIL of a finalized interpreter never returns. So it is counted before
// it reads is_closed, and close_entrance() waits for the counted threads.
Entered::Entered() : state_(PyGILState_UNLOCKED) {
  ++inside;
  entered_ = !is_closed;
  if (entered_)
    state_ = PyGILState_Ensure();
  else
    --inside;
}

Entered::~Entered() {
  if (!entered_) return;
  PyGILState_Release(state_);
  --inside;
}

void close_entrance() {
  is_closed = true;
  Py_BEGIN_ALLOW_THREADS;
  for (int milliseconds = 0; inside > 0 && milliseconds < 5000; ++milliseconds)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Py_END_ALLOW_THREADS;
}

void reset_entrance() { inside = 0; }

void set_main_thread(unsigned long ident) { main_thread = ident; }
bool is_main_thread() { return PyThread_get_thread_ident() == main_thread; }

// --- errors --------------------------------------------------------------------------------------

Failure failure_of(int status) {
  Failure failure;
  failure.status = status;
  if (status == TUTTI_OK) return failure;
  failure.text = tutti_last_error();
  failure.tensor = tutti_last_error_tensor();
  failure.rank = tutti_last_error_rank();
  return failure;
}

void set_error_maker(PyObject* maker) { error_maker = Py_NewRef(maker); }

PyObject* raise(const Failure& failure) {
  // The program chooses names, which may hold any bytes.
  const Reference text(PyUnicode_DecodeUTF8(
      failure.text.data(), static_cast<Py_ssize_t>(failure.text.size()), "replace"));
  const Reference tensor(PyUnicode_DecodeUTF8(
      failure.tensor.data(), static_cast<Py_ssize_t>(failure.tensor.size()), "replace"));
  if (!text || !tensor) return nullptr;
  const Reference error(PyObject_CallFunction(error_maker, "iOiO", failure.status, text.get(),
                                              failure.rank, tensor.get()));
  if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  return nullptr;
}

PyObject* refuse(const std::string& text) { return raise({TUTTI_INVALID_ARGUMENT, text, "", -1}); }

bool check(int status) {
  if (status == TUTTI_OK) return true;
  raise(failure_of(status));
  return false;
}

std::string take_exception_text() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const Reference owned_type(type), owned_value(value), owned_trace(trace);
  if (!owned_type) return "no exception";
  std::string text;
  if (const Reference name(PyType_GetName(reinterpret_cast<PyTypeObject*>(type))); name)
    text = text_of(name.get());
  if (const Reference words(owned_value ? PyObject_Str(value) : nullptr); words)
    text += ": " + text_of(words.get());
  PyErr_Clear();
  return text;
}

namespace {

/// A call that runs in another thread than the main thread. It is abandoned if the main thread is
/// interrupted.
struct Beside {
  std::mutex mutex;
  std::condition_variable ended;
  // Guarded by mutex.
  bool is_over = false, is_left_alone = false;
  Failure failure;
};

bool run_beside(std::function<int()> call, std::function<void()> late) {
  const auto beside = std::make_shared<Beside>();
  const auto body = [beside, call = std::move(call), late] {
    auto failure = failure_of(call());
    std::unique_lock lock(beside->mutex);
    beside->failure = std::move(failure);
    beside->is_over = true;
    beside->ended.notify_all();
    const bool ended_well = beside->failure.status == TUTTI_OK;
    if (!beside->is_left_alone || !ended_well || !late) return;
    lock.unlock();
    late();
  };
  try {
    std::thread(body).detach();
  } catch (const std::system_error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return false;
  }
  bool is_over = false;
  while (!is_over) {
    Py_BEGIN_ALLOW_THREADS;
    {
      std::unique_lock lock(beside->mutex);
      is_over = beside->ended.wait_for(lock, std::chrono::milliseconds(50),
                                       [&] { return beside->is_over; });
    }
    Py_END_ALLOW_THREADS;
    if (is_over || PyErr_CheckSignals() == 0) continue;
    std::unique_lock lock(beside->mutex);
    beside->is_left_alone = true;
    const bool came_through = beside->is_over && beside->failure.status == TUTTI_OK;
    lock.unlock();
    // The interrupted caller does not take the object that the call has made, so `late` releases
    // it.
    if (came_through && late) {
      Py_BEGIN_ALLOW_THREADS;
      late();
      Py_END_ALLOW_THREADS;
    }
    return false;
  }
  if (beside->failure.status == TUTTI_OK) return true;
  raise(beside->failure);
  return false;
}

}  // namespace

bool run_interruptibly(std::function<int()> call, std::function<void()> late) {
  if (is_main_thread()) return run_beside(std::move(call), std::move(late));
  Failure failure;
  Py_BEGIN_ALLOW_THREADS;
  failure = failure_of(call());
  Py_END_ALLOW_THREADS;
  if (failure.status == TUTTI_OK) return true;
  raise(failure);
  return false;
}

bool read_timeout(PyObject* timeout, const std::string& of, double& seconds) {
  seconds = kForever;
  if (timeout == Py_None) return true;
  seconds = PyFloat_AsDouble(timeout);
  if (seconds == -1 && PyErr_Occurred() != nullptr) return false;
  if (!std::isnan(seconds) && seconds >= 0) return true;
  refuse(of + ": a timeout is a number of seconds from 0 on");
  return false;
}

bool wait_in_slices(double seconds, const std::function<int(double)>& wait_for,
                    const std::function<bool()>& goes_on) {
  const bool hears_signals = is_main_thread();
  const double longest = hears_signals ? 0.1 : 60;
  while (true) {
    const double slice = std::min(seconds, longest);
    int status = TUTTI_OK;
    Py_BEGIN_ALLOW_THREADS;
    status = wait_for(slice);
    Py_END_ALLOW_THREADS;
    seconds -= slice;
    // Any other status ends the wait. So does a timeout that is the operation's own error.
    if (status != TUTTI_TIMEOUT || seconds <= 0 || !goes_on()) return check(status);
    if (hears_signals && PyErr_CheckSignals() != 0) return false;
  }
}

}  // namespace tutti::python
