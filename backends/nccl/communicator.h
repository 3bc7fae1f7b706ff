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
  /// Begins to split it, which nothing else may be under way on, as a call. NCCL makes the new one
  /// by and by; once state() is `ready`, take_split() has it (null without a color).
  State begin_split(int color, int key, ncclConfig_t& config);
  std::shared_ptr<NcclCommunicator> take_split();
  /// Asks NCCL; finds its asynchronous errors.
  State state();
  /// Why, after `failed`.
  const std::string& failure() const { return failure_; }

  /// Ends what runs on the device, from any thread; waits for the thread inside at most for the
  /// grace that NCCL gives. Idempotent.
  void abort() noexcept;
  /// The same in a thread of its own, since NCCL may hang in it; then calls `done`.
  static void abort_apart(std::shared_ptr<NcclCommunicator> communicator,
                          std::function<void()> done);
  /// Aborted, about to be, or closed.
  bool is_over() const { return is_aborting_; }
  /// Waits for the thread that aborts it; false if NCCL still hangs in that.
  bool await_end(Deadline deadline) const noexcept;
  /// Ends it in order, after its last operation; aborts if that takes too long. If it is being
  /// aborted, waits for that: a process that ends in the middle of it crashes.
  void close(Deadline deadline) noexcept;

 private:
  class Inside;
  State judge(ncclResult_t result);

  const std::shared_ptr<const NcclLibrary> library_;
  const ncclComm_t native_;
  ncclComm_t split_ = nullptr;  // NCCL writes it when it is there
  State state_ = State::ready;
  std::string failure_;
  std::atomic<bool> is_inside_{false};
  std::atomic<bool> is_aborting_{false};
  std::atomic<bool> has_ended_{false};
};

}  // namespace tutti
