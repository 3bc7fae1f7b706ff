#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

class WorkState;

/// The handle of an asynchronous operation. Copies refer to the same operation. Dropping the handle
/// does not cancel the operation, which still reads and writes the tensors' memory until it has
/// ended. A program that drops the handle cannot know when the operation ends. It may crash if it
/// frees the memory too early. Therefore compilers warn of a dropped Work. Keep it and wait() for
/// it, or pass a callback to then(). Errors of dropped Works are logged. Any thread may use it.
class [[nodiscard("wait() for it: the operation uses the memory until it is over")]] Work {
 public:
  Work() = default;
  Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}  // for the library

  explicit operator bool() const { return state_ != nullptr; }  // false if made by Work()
  /// Returns whether the operation has completed or failed. Never blocks.
  bool done() const;
  /// Blocks until the operation has ended, and throws its Error if it failed. The calling thread
  /// runs the engine meanwhile. Throws Error(callback) inside a callback.
  void wait();
  /// Waits like wait(), but throws Error(timeout) if the deadline passes first. The operation goes
  /// on.
  void wait(Deadline deadline);
  /// For operations on device memory: makes `stream` wait instead of the host. Errors are reported
  /// by wait() or then(). For host memory it is the same as wait(). For the first operation of a
  /// name the host waits too, so that nothing is loaded, connected or allocated while a stream
  /// waits.
  void wait_on(StreamRef stream);
  /// Calls `callback` once the operation has ended. If it has already ended, this thread calls the
  /// callback immediately. Otherwise a thread of the Communicator calls it. That thread runs one
  /// callback after another. However long a callback takes, the operations of this rank go on. The
  /// Communicator's destructor waits for running callbacks, for at most TUTTI_CLOSE_TIMEOUT. The
  /// callback gets null or the error. An exception that it throws on the Communicator's thread is
  /// logged.
  void then(std::function<void(std::exception_ptr)> callback);
  /// Returns an output whose size only the library knows (allgather, alltoall, sparse). Waits for
  /// the operation first.
  Tensor output(size_t index = 0);
  /// Returns the number of rows from each rank (alltoall), or of each rank (allgather). Waits for
  /// the operation first.
  std::vector<int64_t> received_counts();
  /// Returns the rank whose data a recv got, or -1 if it received nothing. Waits for the operation
  /// first.
  int source();

 private:
  std::shared_ptr<WorkState> state_;
};

}  // namespace tutti
