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
  Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}  // by the library

  explicit operator bool() const { return state_ != nullptr; }  // not made by Work()
  /// Over, well or not; never blocks.
  bool done() const;
  /// Blocks until it is over and throws the operation's Error if it failed. The caller drives the
  /// engine meanwhile. Inside a callback: Error(callback).
  void wait();
  /// The same with a deadline: Error(timeout) when it passes; the operation goes on.
  void wait(Deadline deadline);
  /// Makes a stream wait instead of the host, for operations on device memory; errors are seen by
  /// wait() or then(). On host memory it is wait(). The first operation of a name is waited for by
  /// the host too, so that nothing is loaded, connected or allocated while a stream is held.
  void wait_on(StreamRef stream);
  /// Runs `callback` once when the operation is over: at once and on this thread if it is, else on
  /// a thread of the Communicator's own that runs callbacks one after another. However long it
  /// takes, this rank goes on with all else; the Communicator's destructor waits for it, for at
  /// most TUTTI_CLOSE_TIMEOUT. It gets null or the error. What it throws on that thread is logged.
  void then(std::function<void(std::exception_ptr)> callback);
  /// Results whose size only the library knows (allgather, alltoall, sparse). Waits first.
  Tensor output(size_t index = 0);
  /// alltoall: rows received from each rank; allgather: rows of each rank.
  std::vector<int64_t> received_counts();
  /// recv: the rank that sent, which matters where any may; -1: nothing was received. Waits first.
  int source();

 private:
  std::shared_ptr<WorkState> state_;
};

}  // namespace tutti
