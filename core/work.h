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

/// The handle of an asynchronous operation. Copies share it. Dropping it does not cancel: the
/// operation goes on, and reads and writes the tensors' memory until it is over. A program that
/// drops it cannot know when that is, and crashes if it frees the memory before. Therefore
/// compilers warn of a dropped Work. Keep it and wait() for it, or hand it to then(). Errors of
/// dropped Works are logged. Any thread.
class [[nodiscard("wait() for it: the operation uses the memory until it is over")]] Work {
 public:
  Work() = default;
  Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}  // for the library

  explicit operator bool() const { return state_ != nullptr; }  // false if made by Work()
  /// Returns whether the operation is over, completed or failed. Never blocks.
  bool done() const;
  /// Blocks until it is over and throws the operation's Error if it failed. The caller drives the
  /// engine meanwhile. Throws Error(callback) inside a callback.
  void wait();
  /// Does the same, but throws Error(timeout) if the deadline passes first. The operation goes on.
  void wait(Deadline deadline);
  /// For operations on device memory: makes a stream wait instead of the host. Errors come from
  /// wait() or then(). On host memory it is wait(). For the first operation of a name the host
  /// waits too, so that nothing is loaded, connected or allocated while a stream is held.
  void wait_on(StreamRef stream);
  /// Runs `callback` once the operation is over. If it is over already, this thread runs the
  /// callback at once. Otherwise a thread of the Communicator does, one callback after another.
  /// However long a callback takes, the operations of this rank go on. The Communicator's
  /// destructor waits for it, for at most TUTTI_CLOSE_TIMEOUT. The callback gets null or the error.
  /// What it throws on that thread is logged.
  void then(std::function<void(std::exception_ptr)> callback);
  /// Returns an output whose size only the library knows (allgather, alltoall, sparse). Waits
  /// first.
  Tensor output(size_t index = 0);
  /// Returns the rows from each rank (alltoall), or the rows of each rank (allgather). Waits first.
  std::vector<int64_t> received_counts();
  /// Returns the rank that a recv got its data from, or -1 if it received nothing. Waits first.
  int source();

 private:
  std::shared_ptr<WorkState> state_;
};

}  // namespace tutti
