#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "tutti/backends/nccl/library.h"
#include "tutti/base/deadline.h"

namespace tutti {

/// One nonblocking communicator of NCCL. NCCL allows no other call in parallel, so only the thread
/// that drives the engine calls it, except for abort(). After a failure or an abort() no call
/// reaches NCCL.
class NcclCommunicator {
 public:
  enum class State { ready, busy, failed };

  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, ncclComm_t native);
  /// Aborts the communicator if it was not closed before.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// Makes calls of NCCL. `grouped` must be true if there may be several. The result `busy` means
  /// that NCCL goes on with the calls in the background. They are on the stream once state() is
  /// `ready`. No other call may be made until then.
  State call(bool grouped, const std::function<ncclResult_t(ncclComm_t)>& calls);
  /// Begins to split the communicator. No operation may be running on it. NCCL makes the new
  /// communicator in the background. Once state() is `ready`, take_split() returns the new
  /// communicator, or null if `color` is negative.
  State begin_split(int color, int key, ncclConfig_t& config);
  std::shared_ptr<NcclCommunicator> take_split();
  /// Asks NCCL for the state. NCCL reports asynchronous errors only when it is asked.
  State state();
  /// Returns the reason of the state `failed`.
  const std::string& failure() const { return failure_; }

  /// Ends the work on the device. Any thread may call it, also more than once. If a thread is
  /// inside NCCL, it first waits at most a second for that thread.
  void abort() noexcept;
  /// Aborts on a thread of its own, because NCCL may hang in an abort, and then calls `done`.
  static void abort_apart(std::shared_ptr<NcclCommunicator> communicator,
                          std::function<void()> done);
  /// Returns whether the communicator is closed, aborted, or being aborted.
  bool is_over() const { return is_aborting_; }
  /// Waits until another thread has aborted the communicator. Returns false if that abort still
  /// hangs at the deadline.
  bool await_end(Deadline deadline) const noexcept;
  /// Closes the communicator after its last operation, or aborts it if that takes too long. If
  /// another thread is aborting it, waits for that thread, because a process that exits during an
  /// abort crashes.
  void close(Deadline deadline) noexcept;

 private:
  class Inside;
  State judge(ncclResult_t result);

  const std::shared_ptr<const NcclLibrary> library_;
  const ncclComm_t native_;
  ncclComm_t split_ = nullptr;  // NCCL sets it when the new communicator exists
  State state_ = State::ready;
  std::string failure_;
  std::atomic<bool> is_inside_{false};
  std::atomic<bool> is_aborting_{false};
  std::atomic<bool> has_ended_{false};
};

}  // namespace tutti
