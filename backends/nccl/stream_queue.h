#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/backends/device/device_backend.h"
#include "tutti/backends/device/device_span.h"
#include "tutti/backends/nccl/calls.h"
#include "tutti/backends/nccl/catch_up.h"
#include "tutti/backends/nccl/communicator.h"
#include "tutti/backends/nccl/regions.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

class StreamQueue;

/// The state that all queues of a backend share.
struct NcclPlace {
  std::shared_ptr<const NcclLibrary> library;
  DeviceRuntime* runtime = nullptr;
  Device device;
  int rank = 0;
  int size = 1;
  std::shared_ptr<DeviceBell> bell;
  std::shared_ptr<NcclRegions> regions;
};

/// A collective in a queue. Packing, NCCL's calls and unpacking are submitted to the queue's stream
/// one after another, as soon as NCCL takes calls. A word reports when everything has happened.
class NcclOperation final : public Operation {
 public:
  explicit NcclOperation(StreamQueue& queue);
  ~NcclOperation() override;

  /// `launch.device` and what it points to are borrowed until the operation is over.
  void begin(const Collective& collective, const Launch& launch);
  /// Begins a bucket that this rank did not start: `memory` holds it, and this rank vetoes.
  void begin_filling(const BucketShape& shape, std::unique_ptr<Region> memory);
  OperationState advance() override;
  void cancel() override;
  void release() override;
  const Error* failure() const override { return failure_ ? &*failure_ : nullptr; }

 private:
  friend class StreamQueue;
  enum class Stage { waiting, called, on_stream };

  DeviceBucket bucket() const;
  /// Submits the packing and NCCL's part.
  NcclCommunicator::State call();
  /// Submits everything after NCCL's part.
  void follow();
  Scale scale() const;
  uint64_t outcome() const;  // 0: none yet

  StreamQueue& queue_;
  uint64_t* const word_;
  uint64_t turn_ = 0;  // number of uses; makes the word's values of each use differ
  Collective collective_;
  // the count of a bucket that this rank fills in; collective_.send_counts refers to it
  int64_t count_ = 0;
  DeviceLaunch device_;
  std::optional<DeviceSpan> moving_;  // the span of NCCL's part, until that is on the stream
  uint64_t tag_ = 0;
  int contributors_ = 0;
  bool is_bucket_ = false;
  bool vetoes_ = false;
  std::unique_ptr<Region> filling_;
  Stage stage_ = Stage::waiting;
  bool is_cancelled_ = false;
  bool is_abandoned_ = false;  // released while the device still worked on it; never reused
  std::optional<Error> failure_;
};

/// The operations of one communicator of NCCL on one stream, in the order in which they were
/// started, which is the same on all ranks. Only the holder of the engine's token uses it, except
/// abort().
class StreamQueue {
 public:
  using Ask = std::function<void(const BucketShape&)>;
  /// `ask` makes the other ranks fill() a bucket that this rank cancelled after it had started.
  StreamQueue(const NcclPlace& place, std::shared_ptr<NcclCommunicator> communicator, Ask ask);
  /// Waits for the streams until a deadline. All operations must be released before.
  ~StreamQueue();

  OperationPtr start(const Collective& collective, const Launch& launch);
  /// Takes part, with a veto, in a bucket of other ranks, unless this rank has started it.
  void fill(const BucketShape& shape);

  bool progress();
  /// Returns whether NCCL must be asked to learn when the next call can be made.
  bool must_ask() const { return called_ != nullptr || !waiting_.empty(); }
  bool idle() const { return busy_ == 0; }
  /// Any thread may call it. It returns at once.
  void abort() noexcept;
  /// Returns whether the communicator failed or was aborted, so that nothing pending can complete.
  /// An error that NCCL reports counts only after a while, since our own liveness knows which rank
  /// is gone.
  bool has_failed();
  /// Called when a rank is gone or has left: pending operations may end or not.
  void lose_peer() {
    if (!lost_since_) lost_since_ = Clock::now();
  }
  const std::string& failure() const { return communicator_->failure(); }
  /// Ends operations that do not end by themselves. Returns false if some are still on the stream.
  bool break_off();

 private:
  friend class NcclOperation;
  NcclOperation& take();
  void recycle(NcclOperation& operation);
  void submit(NcclOperation& operation);
  bool advance_calls();
  bool finish_fillers();
  void tell_when_done();
  /// Returns false if the deadline passed or the device failed for good.
  bool drain(Deadline deadline) noexcept;

  const NcclPlace place_;
  const Ask ask_;
  const std::shared_ptr<NcclCommunicator> communicator_;
  NcclOperators operators_;
  const StreamRef stream_;
  // rings the bell, so that operations on stream_ need not wait for the host function
  const StreamRef telling_;
  void* const event_;
  std::deque<NcclOperation*> waiting_;
  NcclOperation* called_ = nullptr;  // the operation whose calls NCCL has not taken completely
  int busy_ = 0;                     // operations in use
  uint64_t last_tag_ = 0;            // the highest tag of a bucket that was started
  std::vector<std::unique_ptr<NcclOperation>> operations_;
  std::vector<NcclOperation*> free_;
  std::vector<NcclOperation*> fillers_;
  std::atomic<bool> abort_asked_{false};
  std::optional<Clock::time_point> failed_since_, lost_since_;
  std::optional<Deadline> breaking_off_;  // deadline of the cleanup
};

}  // namespace tutti
