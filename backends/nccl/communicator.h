#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "tutti/backends/nccl/library.h"
#include "tutti/base/deadline.h"

namespace tutti {

/// One nonblocking communicator of NCCL. One thread at a time calls it (the holder of the engine's
/// token), except abort(): NCCL allows no other call in parallel. After a failure or abort() no
/// call reaches NCCL.
class NcclCommunicator {
 public:
  enum class State { ready, busy, failed };

  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, ncclComm_t native);
  /// Aborts the communicator if it was not closed.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// Makes calls of NCCL; set `grouped` if there may be several. The result `busy` means that NCCL
  /// continues them by itself. They are on the stream once state() is `ready`, and nothing may be
  /// called before.
  State call(bool grouped, const std::function<ncclResult_t(ncclComm_t)>& calls);
  /// Begins to split it, as a call; no operation may be running on it. NCCL makes the new
  /// communicator in the background. Once state() is `ready`, take_split() returns it (null without
  /// a color).
  State begin_split(int color, int key, ncclConfig_t& config);
  std::shared_ptr<NcclCommunicator> take_split();
  /// Asks NCCL for the state, which also reports its asynchronous errors.
  State state();
  /// Returns the reason, after `failed`.
  const std::string& failure() const { return failure_; }

  /// Ends what runs on the device. Any thread may call it. It first waits at most a second for a
  /// thread that is inside NCCL. Idempotent.
  void abort() noexcept;
  /// Aborts in a thread of its own, since NCCL may hang in it, and then calls `done`.
  static void abort_apart(std::shared_ptr<NcclCommunicator> communicator,
                          std::function<void()> done);
  /// Returns whether it is aborted, being aborted, or closed.
  bool is_over() const { return is_aborting_; }
  /// Waits for the thread that aborts it; returns false if NCCL still hangs in that at the
  /// deadline.
  bool await_end(Deadline deadline) const noexcept;
  /// Ends it in order, after its last operation; aborts if that takes too long. If it is being
  /// aborted, it waits for that, because a process that exits during an abort crashes.
  void close(Deadline deadline) noexcept;

 private:
  class Inside;
  State judge(ncclResult_t result);

  const std::shared_ptr<const NcclLibrary> library_;
  const ncclComm_t native_;
  ncclComm_t split_ = nullptr;  // NCCL writes it when the new communicator exists
  State state_ = State::ready;
  std::string failure_;
  std::atomic<bool> is_inside_{false};
  std::atomic<bool> is_aborting_{false};
  std::atomic<bool> has_ended_{false};
};

}  // namespace tutti
