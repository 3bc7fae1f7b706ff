#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "tutti/backends/nccl/library.h"
#include "tutti/base/deadline.h"

namespace tutti {

/// One nonblocking communicator of NCCL. One thread at a time calls it (the holder of the engine's
/// token), except abort(): NCCL allows no more. After a failure or abort() no call reaches NCCL.
class NcclCommunicator {
 public:
  enum class State { ready, busy, failed };

  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, ncclComm_t native);
  /// Aborts what was not closed.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// Makes calls of NCCL, in one group if there may be several. `busy`: NCCL goes on with them by
  /// itself; they are on the stream when state() is `ready`, and nothing may be called before.
  State call(bool grouped, const std::function<ncclResult_t(ncclComm_t)>& calls);
  /// Asks NCCL; finds its asynchronous errors.
  State state();
  /// Why, after `failed`.
  const std::string& failure() const { return failure_; }

  /// Ends what runs on the device, from any thread; waits for the thread inside at most for the
  /// grace that NCCL gives. Idempotent.
  void abort() noexcept;
  /// Aborted, about to be, or closed.
  bool is_over() const { return is_aborting_; }
  /// Ends it in order, after its last operation; aborts if that takes too long.
  void close(Deadline deadline) noexcept;

 private:
  class Inside;
  State judge(ncclResult_t result);

  const std::shared_ptr<const NcclLibrary> library_;
  const ncclComm_t native_;
  State state_ = State::ready;
  std::string failure_;
  std::atomic<bool> is_inside_{false};
  std::atomic<bool> is_aborting_{false};
};

}  // namespace tutti
