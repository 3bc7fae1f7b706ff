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

/// What all queues of a backend share.
struct NcclPlace {
  std::shared_ptr<const NcclLibrary> library;
  DeviceRuntime* runtime = nullptr;
  Device device;
  int rank = 0;
  int size = 1;
  std::shared_ptr<DeviceBell> bell;
  std::shared_ptr<NcclRegions> regions;
};

/// A collective on its way through a queue: pack, NCCL's calls and unpack are submitted to the
/// queue's stream, one after another, as soon as NCCL takes calls; a word says when all happened.
class NcclOperation final : public Operation {
 public:
  explicit NcclOperation(StreamQueue& queue);
  ~NcclOperation() override;

  /// `launch.device` and what it points to are borrowed until the operation is over.
  void begin(const Collective& collective, const Launch& launch);
  /// For a bucket of which this rank has nothing: `memory` holds it.
  void begin_filling(const BucketShape& shape, std::unique_ptr<Region> memory);
  OperationState advance() override;
  void cancel() override;
  void release() override;
  const Error* failure() const override { return failure_ ? &*failure_ : nullptr; }

 private:
  friend class StreamQueue;
  enum class Stage { waiting, called, on_stream };

  DeviceBucket bucket() const;
  /// Submits all that comes before NCCL's part, and NCCL's part.
  NcclCommunicator::State call();
  /// Submits what comes after it.
  void follow();
  Scale scale() const;
  uint64_t outcome() const;  // 0: none yet

  StreamQueue& queue_;
  uint64_t* const word_;
  uint64_t turn_ = 0;  // how often it was used: the word's values differ
  Collective collective_;
  int64_t count_ = 0;  // in collective_.send_counts of a bucket, with the lane
  DeviceLaunch device_;
  std::optional<DeviceSpan> moving_;  // NCCL's part, until it is on the stream
  uint64_t tag_ = 0;
  int contributors_ = 0;
  bool is_bucket_ = false;
  bool vetoes_ = false;
  std::unique_ptr<Region> filling_;
  Stage stage_ = Stage::waiting;
  bool is_cancelled_ = false;
  bool is_abandoned_ = false;  // released while the device worked on it; not used again
  std::optional<Error> failure_;
};

/// Operations of one communicator of NCCL on one stream, in the order in which they were started,
/// which is the same on all ranks. The holder of the engine's token only, but for abort().
class StreamQueue {
 public:
  using Ask = std::function<void(const BucketShape&)>;
  /// `ask`: makes the other ranks fill() a bucket that this one cancelled after it was started.
  StreamQueue(const NcclPlace& place, std::shared_ptr<NcclCommunicator> communicator, Ask ask);
  /// Has a deadline. All operations are released.
  ~StreamQueue();

  OperationPtr start(const Collective& collective, const Launch& launch);
  /// Takes part in a bucket of others with a veto, unless this rank has started it.
  void fill(const BucketShape& shape);

  bool progress();
  /// What comes next can only be found by asking.
  bool must_ask() const { return called_ != nullptr || !waiting_.empty(); }
  bool idle() const { return busy_ == 0; }
  /// Any thread; returns at once.
  void abort() noexcept;
  /// The communicator broke, or was aborted: nothing that is pending ever ends well. What NCCL
  /// itself reports is held back for a while, since our own liveness knows which rank is gone.
  bool has_failed();
  /// A rank is gone, or left in order: what is pending may end yet, or never.
  void lose_peer() {
    if (!lost_since_) lost_since_ = Clock::now();
  }
  const std::string& failure() const { return communicator_->failure(); }
  /// Ends operations that do not end by themselves; false if some are still on the stream.
  bool break_off();

 private:
  friend class NcclOperation;
  NcclOperation& take();
  void recycle(NcclOperation& operation);
  void submit(NcclOperation& operation);
  bool advance_calls();
  bool finish_fillers();
  void tell_when_done();
  /// False: the deadline passed, or the device failed for good.
  bool drain(Deadline deadline) noexcept;

  const NcclPlace place_;
  const Ask ask_;
  const std::shared_ptr<NcclCommunicator> communicator_;
  NcclOperators operators_;
  const StreamRef stream_;
  const StreamRef telling_;  // rings the bell, so that what follows need not wait for that
  void* const event_;
  std::deque<NcclOperation*> waiting_;
  NcclOperation* called_ = nullptr;  // whose calls NCCL has not taken completely
  int busy_ = 0;                     // operations in use
  uint64_t last_tag_ = 0;            // of buckets, started last
  std::vector<std::unique_ptr<NcclOperation>> operations_;
  std::vector<NcclOperation*> free_;
  std::vector<NcclOperation*> fillers_;
  std::atomic<bool> abort_asked_{false};
  std::optional<Clock::time_point> failed_since_, lost_since_;
  std::optional<Deadline> breaking_off_;  // until when
};

}  // namespace tutti
