#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/collectives/collective.h"
#include "tutti/collectives/transport.h"
#include "tutti/tensor/packing.h"

namespace tutti {

struct Algorithm;  // collectives/schedule.h

enum class OperationState : uint8_t { pending, done, vetoed, failed };

/// A running collective. advance() makes progress without blocking or allocating. The caller
/// destroys the operation after advance() has returned a state other than pending, and not earlier.
/// One thread at a time uses an operation.
class Operation {
 public:
  virtual ~Operation() = default;
  /// Called when the caller no longer needs the operation. Deletes the operation, or returns it to
  /// its pool.
  virtual void release() { delete this; }
  virtual OperationState advance() = 0;
  /// Cancels the operation. The operation may use user memory and regions until advance() returns a
  /// state other than pending. That happens soon; the state is then failed, unless the operation
  /// had already ended.
  virtual void cancel() = 0;
  /// After failed: returns the reason, or null if the operation does not know it. Error(mismatch)
  /// means that the ranks disagreed; its text is the same on all ranks.
  virtual const Error* failure() const { return nullptr; }
  /// While pending: returns true if, as far as this rank can see, the operation waits for ranks
  /// that have not started it, rather than for data in flight.
  virtual bool lacks_ranks() const { return false; }
  /// While pending on a device: returns true once the operation needs no more action of the host.
  /// Everything that opens its gates (see DeviceLaunch) is then queued on its streams.
  virtual bool is_on_its_way() const { return false; }
};

struct OperationRelease {
  void operator()(Operation* operation) const { operation->release(); }
};
using OperationPtr = std::unique_ptr<Operation, OperationRelease>;

/// The caller's functions at both ends of an operation. `fill` copies the elements of `range` into
/// `bucket` before they are sent. `drain` copies final values out of `bucket` and applies `scale`;
/// it runs only after the verdicts of all ranks are go. Both run piece by piece, inside start() and
/// advance(). If both are null, the memory of the Collective is used directly.
struct Edges {
  void* self = nullptr;
  void (*fill)(void* self, Range range, std::byte* bucket) = nullptr;
  void (*drain)(void* self, Range range, const std::byte* bucket, Scale scale) = nullptr;
  /// Return the address at which the elements of `range` can be read, or their final values
  /// written, without packing. Return null if they must be packed. If these functions are null,
  /// elements are always packed.
  const std::byte* (*input)(void* self, Range range) = nullptr;
  std::byte* (*output)(void* self, Range range) = nullptr;
};

/// An update that uses reduced elements instead of storing them, for example an optimizer that
/// updates parameters with gradients. The rank that owns a range calls `apply`, which computes new
/// values for `outputs` from byte `offset` on. `outputs` is shared memory of the same layout as the
/// elements. All ranks get the new values.
struct FusedUpdate {
  void* self = nullptr;
  const std::byte* inputs = nullptr;  // start of the layout in the memory of the elements
  std::byte* outputs = nullptr;       // start of the layout in the memory that is updated
  int64_t bytes = 0;                  // size of the layout
  void (*apply)(void* self, int64_t offset, int64_t count, const std::byte* reduced) = nullptr;
};

/// A piece of memory that the ranks share.
struct Window {
  std::byte* data = nullptr;
  int64_t count = 0;  // number of elements
};

/// The value of Launch::queue for an operation that is in no queue. Operations of a queue are
/// started in the same order on all ranks, with increasing tags, so that a backend need not match
/// them by tag. When the tag's upper bits (above kQueueTagBits) change, the queue restarts. By then
/// all earlier operations have ended or were cancelled on all ranks.
inline constexpr int kNoQueue = -1;
inline constexpr int kQueues = 3;
inline constexpr int kQueueTagBits = 40;

/// A function that reports that a device has finished a part of an operation ("pack", "reduce",
/// "unpack"), and the times at which the part was seen to begin and end. It is called on the thread
/// that runs host functions of streams, perhaps after the operation has ended.
using DeviceSpans =
    std::function<void(std::string_view part, Clock::time_point begin, Clock::time_point end)>;

/// The additional fields of a Launch on a device's memory. The backend queues all of its work on
/// its own stream: waiting for the events, packing, moving, unpacking and opening the gates.
/// start() does not wait for any of this work.
struct DeviceLaunch {
  std::span<void* const> ready;  // events recorded when the memory is ready to be read and written
  /// The tensors of a bucket (allreduce). They are packed into the Collective's memory, and
  /// unpacked from there if no rank vetoes. That memory is kLaneBytes longer than the elements
  /// need. If both spans are empty, the Collective's own memory is used, and no rank may veto the
  /// operation.
  std::span<const Piece> inputs = {}, outputs = {};
  Scale prescale = {};
  std::span<uint64_t* const> gates =
      {};               // words that are set to 1 when the outputs are written; see DeviceOutcome
  bool agreed = false;  // the ranks have already agreed that none of them vetoes
  std::shared_ptr<const DeviceSpans> spans = {};  // null if the spans are not reported
};
/// Bytes after a bucket on a device in which the ranks store whether they veto.
inline constexpr int64_t kLaneBytes = 16;

/// How a Collective is started: its identity on all ranks, and this rank's verdict (go or veto).
struct Launch {
  uint64_t tag = 0;      // equal on all ranks, unique among running operations
  int queue = kNoQueue;  // operations of one queue are started in the same order on all ranks
  /// This rank's verdict, which no longer changes: 0 is go, all other values are a veto. If a rank
  /// vetoes, no output is written on any rank. The input of a rank that vetoes is not read and may
  /// be null. In every backend, barriers and the kinds that reduce accept a veto. The other kinds
  /// accept one only in a queue of a backend that packs_itself().
  uint32_t verdict = 0;
  int contributors = 0;  // divisor of op average; 0 for the number of ranks
  /// Nonzero if the caller waits for the operation. start() may poll its peers about this many
  /// times before it returns. It may return null if the operation is done by then.
  int spins = 0;
  /// For queues: the operation's name, which must be equal on all ranks. Empty if the ranks have
  /// already agreed on the operation.
  std::string_view name = {};
  /// For queues with a name: digest of the memory's layout; 0 if the memory is row-major.
  uint64_t layout = 0;
  Edges edges;
  /// For queues: the memory of the elements as a list of windows. All windows are in one Region of
  /// the backend, at the same distances from each other on all ranks. The elements are reduced in
  /// place. Empty if the memory is not of this form.
  std::span<const Window> windows = {};
  const FusedUpdate* update = nullptr;  // update of the elements in the windows
  /// Set if the memory is a device's. Such operations of one queue make progress in the order in
  /// which they were started. If one rank cancels an operation, all ranks that started it must
  /// cancel it.
  const DeviceLaunch* device = nullptr;
};

class ExecutionPool;

/// Must be equal on all ranks.
struct ExecutorOptions {
  /// Longer allreduces, reduces and broadcasts are split into segments.
  int64_t segment_bytes = 1 << 20;
  int segments_in_flight = 2;  // limit for one operation, or for all operations of one queue
};

/// Runs Collectives with Algorithms of their kind over one Transport. It keeps the schedules and
/// the memory of earlier operations, so that similar operations allocate nothing.
///
/// Operations of a queue share segments_in_flight. The segments of an operation begin after all
/// segments of the previous operation have begun. So any number of buckets may be started at the
/// same time, and the data in flight still fits into a cache. Operations outside of queues run
/// concurrently.
class Executor {
 public:
  /// `hosts` is the host number of each rank; empty if all are on one host. The transport must
  /// outlive the executor, and the executor its operations.
  Executor(Transport& transport, std::vector<int> hosts, const ExecutorOptions& options);
  ~Executor();

  /// Posts the first messages and returns.
  ///
  /// A kind that reduces first writes to the executor's own memory. Once the verdicts of all ranks
  /// are known, it writes directly to the output, or to the memory that the edges return. So a
  /// vetoed operation has written nothing. With edges but neither input nor output, the elements
  /// are packed segment by segment unless they can be used in place. With edges, input and output,
  /// the input and output are the bucket: elements are packed into it, and its contents may change
  /// before the verdicts are known. Throws Error(invalid_argument) for invalid counts, root, dtype
  /// or op.
  OperationPtr start(const Algorithm& algorithm, const Collective& collective,
                     const Launch& launch);
  /// Returns the messages that this rank would send for the operation, according to its schedules.
  Traffic predict(const Algorithm& algorithm, const Collective& collective, const Launch& launch);
  /// Returns how often memory was allocated.
  uint64_t allocations() const;

 private:
  std::unique_ptr<ExecutionPool> pool_;
};

}  // namespace tutti
