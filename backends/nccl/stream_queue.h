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

/// A collective in a queue. Packing, NCCL's calls and unpacking go to the queue's stream one after
/// another, as soon as NCCL takes calls. After them the stream writes word_, from which advance()
/// learns the outcome.
class NcclOperation final : public Operation {
 public:
  explicit NcclOperation(StreamQueue& queue);
  ~NcclOperation() override;

  /// Borrows `launch.device`, and everything that it points to, until the operation is over.
  void begin(const Collective& collective, const Launch& launch);
  /// Takes part, with a veto, in a bucket that this rank did not start. `memory` holds the bucket.
  void begin_filling(const BucketShape& shape, std::unique_ptr<Region> memory);
  OperationState advance() override;
  void cancel() override;
  void release() override;
  const Error* failure() const override { return failure_ ? &*failure_ : nullptr; }

 private:
  friend class StreamQueue;
  enum class Stage { waiting, called, on_stream };

  DeviceBucket bucket() const;
  /// Submits the packing and NCCL's calls.
  NcclCommunicator::State call();
  /// Submits everything that follows NCCL's calls.
  void follow();
  Scale scale() const;
  uint64_t outcome() const;  // 0: the result is not known yet

  StreamQueue& queue_;
  uint64_t* const word_;
  // counts the uses of this object, so that each use writes different values to word_
  uint64_t turn_ = 0;
  Collective collective_;
  // count of a bucket that this rank did not start; collective_.send_counts refers to it
  int64_t count_ = 0;
  DeviceLaunch device_;
  std::optional<DeviceSpan> moving_;  // the time span of NCCL's calls, until they are on the stream
  uint64_t tag_ = 0;
  int contributors_ = 0;
  bool is_bucket_ = false;
  bool vetoes_ = false;
  std::unique_ptr<Region> filling_;
  Stage stage_ = Stage::waiting;
  bool is_cancelled_ = false;
  // true if this object was released while the device still worked on it; it is never reused
  bool is_abandoned_ = false;
  std::optional<Error> failure_;
};

/// The operations of one communicator of NCCL on one stream. They run in the order in which they
/// were started, which is the same on all ranks. Except for abort(), only the thread that drives
/// the engine uses this class.
class StreamQueue {
 public:
  using Ask = std::function<void(const BucketShape&)>;
  /// `ask` makes the other ranks fill() a bucket that this rank has started and then cancelled.
  StreamQueue(const NcclPlace& place, std::shared_ptr<NcclCommunicator> communicator, Ask ask);
  /// Waits for the work on the streams, until a deadline. All operations must have been released.
  ~StreamQueue();

  OperationPtr start(const Collective& collective, const Launch& launch);
  /// Takes part in a bucket of other ranks with a veto, unless this rank has already started that
  /// bucket.
  void fill(const BucketShape& shape);

  bool progress();
  /// Returns whether NCCL must be asked when it takes the next call.
  bool must_ask() const { return called_ != nullptr || !waiting_.empty(); }
  bool idle() const { return busy_ == 0; }
  /// Returns immediately. Any thread may call it.
  void abort() noexcept;
  /// Returns whether the communicator has failed or was aborted, so that nothing pending can
  /// complete. An error of NCCL counts only after a while. By then our own liveness checks may have
  /// reported which rank is gone.
  bool has_failed();
  /// Called when a rank is gone or has left. Pending operations may then never end.
  void lose_peer() {
    if (!lost_since_) lost_since_ = Clock::now();
  }
  const std::string& failure() const { return communicator_->failure(); }
  /// Ends the operations that cannot end by themselves any more. Returns false if the streams still
  /// run some of them at the deadline.
  bool break_off();

 private:
  friend class NcclOperation;
  NcclOperation& take();
  void recycle(NcclOperation& operation);
  void submit(NcclOperation& operation);
  bool advance_calls();
  bool finish_fillers();
  void tell_when_done();
  /// Waits for the work on the streams. Returns false at the deadline or if the device has failed
  /// for good.
  bool drain(Deadline deadline) noexcept;

  const NcclPlace place_;
  const Ask ask_;
  const std::shared_ptr<NcclCommunicator> communicator_;
  NcclOperators operators_;
  const StreamRef stream_;
  // runs the host functions that wake the engine, so that work on stream_ need not wait for them
  const StreamRef telling_;
  void* const event_;
  std::deque<NcclOperation*> waiting_;
  NcclOperation* called_ = nullptr;  // the operation whose calls NCCL is still taking
  int busy_ = 0;                     // number of operations in use
  uint64_t last_tag_ = 0;            // the highest tag of a bucket that this rank has started
  std::vector<std::unique_ptr<NcclOperation>> operations_;
  std::vector<NcclOperation*> free_;
  std::vector<NcclOperation*> fillers_;
  std::atomic<bool> abort_asked_{false};
  std::optional<Clock::time_point> failed_since_, lost_since_;
  std::optional<Deadline> breaking_off_;  // deadline of the cleanup, once it has begun
};

}  // namespace tutti
