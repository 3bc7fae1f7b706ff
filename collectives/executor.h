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
/// destroys the operation after any state other than pending, and not earlier. One thread at a time
/// uses it.
class Operation {
 public:
  virtual ~Operation() = default;
  /// Called when the caller is done with it. Returns it to its pool, if it came from one.
  virtual void release() { delete this; }
  virtual OperationState advance() = 0;
  /// Cancels the operation. It may use user memory and regions until advance() returns a state
  /// other than pending, which it soon does (failed, unless it was already over).
  virtual void cancel() = 0;
  /// After failed: returns the reason if the operation itself knows it. Error(mismatch) means that
  /// the ranks disagreed; all ranks have the same text.
  virtual const Error* failure() const { return nullptr; }
  /// While pending: returns true if, as far as this rank can see, it waits for ranks that have not
  /// started it, and not for data in flight.
  virtual bool lacks_ranks() const { return false; }
  /// While pending on a device: returns true once everything that will open the gates is queued on
  /// its streams, so that no host action is needed.
  virtual bool is_on_its_way() const { return false; }
};

struct OperationRelease {
  void operator()(Operation* operation) const { operation->release(); }
};
using OperationPtr = std::unique_ptr<Operation, OperationRelease>;

/// The caller's functions at both ends of an operation. They copy the elements `range` into and out
/// of the bucket at `bucket`. `fill` runs for every element before it is sent. `drain` runs only
/// for final values, after all ranks' verdicts are go. Both run piece by piece, inside start() and
/// advance(). If the functions are null, the memory of the Collective is used directly.
struct Edges {
  void* self = nullptr;
  void (*fill)(void* self, Range range, std::byte* bucket) = nullptr;
  void (*drain)(void* self, Range range, const std::byte* bucket, Scale scale) = nullptr;
  /// Return the address at which the elements can be read, or final ones written, without packing,
  /// or null if they must be packed. Null functions mean that they always must be packed.
  const std::byte* (*input)(void* self, Range range) = nullptr;
  std::byte* (*output)(void* self, Range range) = nullptr;
};

/// Uses reduced elements instead of storing them. Their owner computes values from them for other
/// shared memory of the same layout (an optimizer its parameters), and all ranks get these values.
/// `apply` updates `outputs` from byte `offset` on.
struct FusedUpdate {
  void* self = nullptr;
  const std::byte* inputs = nullptr;  // begin of the layout in the memory of the elements
  std::byte* outputs = nullptr;       // begin of the layout in the memory that is updated
  int64_t bytes = 0;                  // size of the layout
  void (*apply)(void* self, int64_t offset, int64_t count, const std::byte* reduced) = nullptr;
};

/// A piece of memory that the ranks share.
struct Window {
  std::byte* data = nullptr;
  int64_t count = 0;  // elements
};

/// Operations of a queue are started in the same order on all ranks, with increasing tags, so that
/// a backend need not match them by tag. A queue restarts when the tag's upper bits (above
/// kQueueTagBits) change: all earlier operations are over, or were cancelled on all ranks.
inline constexpr int kNoQueue = -1;
inline constexpr int kQueues = 3;
inline constexpr int kQueueTagBits = 40;

/// Reports that a device has finished a part of an operation ("pack", "reduce", "unpack"), and when
/// the part was seen to begin and end. It is called on the thread that runs host functions of
/// streams, perhaps after the operation is over.
using DeviceSpans =
    std::function<void(std::string_view part, Clock::time_point begin, Clock::time_point end)>;

/// The additional fields of a Launch on a device's memory. The backend does everything in the order
/// of its own stream: it waits for the events, packs, moves, unpacks and opens the gates. start()
/// only queues this work.
struct DeviceLaunch {
  std::span<void* const> ready;  // events recorded when the memory is ready to be read and written
  /// The tensors of a bucket (allreduce). They are packed into the Collective's memory, which has
  /// kLaneBytes more than its count needs, and unpacked from there if no rank vetoes. If both are
  /// empty, the Collective's own memory is used, and no rank may veto the operation.
  std::span<const Piece> inputs = {}, outputs = {};
  Scale prescale = {};
  std::span<uint64_t* const> gates =
      {};               // set to 1 when the outputs are written; see DeviceOutcome
  bool agreed = false;  // known to be without a veto
  std::shared_ptr<const DeviceSpans> spans = {};  // null if not reported
};
/// Bytes for the veto lane after a bucket on a device.
inline constexpr int64_t kLaneBytes = 16;

/// How a Collective is started: its identity on all ranks, and this rank's verdict.
struct Launch {
  uint64_t tag = 0;      // equal on all ranks, unique among running operations
  int queue = kNoQueue;  // operations of one queue are started in the same order on all ranks
  /// This rank's verdict, fixed now; 0 is go. If it is not 0, no output is written on any rank, and
  /// this rank's input is not read and may be null. Kinds that reduce and barrier accept a verdict
  /// in every backend, the other kinds only in a queue of a backend that packs_itself().
  uint32_t verdict = 0;
  int contributors = 0;  // divisor of op average; 0 for the number of ranks
  /// The caller waits for the operation. start() may poll its peers about this many times before it
  /// returns, and may return null if the operation is done by then.
  int spins = 0;
  /// For queues: all ranks must use the same name. Empty if they are known to agree already.
  std::string_view name = {};
  /// For queues with a name: digest that includes the memory's strides; 0 if row-major.
  uint64_t layout = 0;
  Edges edges;
  /// For queues: the memory of the elements, one window after another, if all of it is in one
  /// Region of the backend and at the same distances on all ranks. The elements are reduced in
  /// place.
  std::span<const Window> windows = {};
  const FusedUpdate* update = nullptr;  // update of the elements in the windows
  /// Set if the memory is a device's. Such operations of one queue make progress in the order in
  /// which they were started. If one is cancelled, all ranks that started it cancel it.
  const DeviceLaunch* device = nullptr;
};

class ExecutionPool;

/// Must be equal on all ranks.
struct ExecutorOptions {
  /// Longer allreduces, reduces and broadcasts are split into segments.
  int64_t segment_bytes = 1 << 20;
  int segments_in_flight = 2;  // of one operation, or of all operations of one queue
};

/// Runs Collectives with Algorithms of their kind over one Transport. It keeps the schedules and
/// the memory of earlier operations, so that similar operations allocate nothing.
///
/// Operations of a queue share segments_in_flight. The segments of an operation begin after all
/// segments of the previous one have begun. So any number of buckets may be started at once, and
/// the data in flight still fits into a cache. Other operations run concurrently.
class Executor {
 public:
  /// `hosts` is the host number of each rank; empty if all are on one host. The transport must
  /// outlive the executor, and the executor its operations.
  Executor(Transport& transport, std::vector<int> hosts, const ExecutorOptions& options);
  ~Executor();

  /// Posts the first messages and returns.
  ///
  /// Kinds that reduce work in the executor's memory until the verdicts of all ranks are known, so
  /// that a vetoed operation has written nothing. From then on they write directly to the output,
  /// or to the memory that the edges return. With edges but neither input nor output, the elements
  /// are packed segment by segment if they cannot be used in place. With edges and input and
  /// output, these are the bucket: elements are packed into it, and the bucket may change before
  /// the verdict is known. Throws Error(invalid_argument) for invalid counts, root, dtype or op.
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
