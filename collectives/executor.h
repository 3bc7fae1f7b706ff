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

/// A running collective. advance() moves it without blocking and without allocating; after any
/// other state than pending the caller destroys it, not before. One thread at a time.
class Operation {
 public:
  virtual ~Operation() = default;
  /// The caller is done with it: it goes back to its pool, if it came from one.
  virtual void release() { delete this; }
  virtual OperationState advance() = 0;
  /// Gives up: the operation touches user memory and regions no more once advance() says other than
  /// pending, as it soon will (failed, unless it was over already).
  virtual void cancel() = 0;
  /// After failed: why, where the operation itself knows it. Error(mismatch): the ranks disagreed,
  /// and all have this text.
  virtual const Error* failure() const { return nullptr; }
  /// While pending: true where it waits for ranks that have not come to it, as far as this rank can
  /// tell, and not for data on its way.
  virtual bool lacks_ranks() const { return false; }
  /// While pending, on a device: true where what opens the gates is on its streams, and waits for
  /// nothing that is not.
  virtual bool is_on_its_way() const { return false; }
};

struct OperationRelease {
  void operator()(Operation* operation) const { operation->release(); }
};
using OperationPtr = std::unique_ptr<Operation, OperationRelease>;

/// The caller's functions at both ends of an operation: they pack into and unpack from the bucket,
/// whose elements `range` lie at `bucket`. `fill` runs for every element before it is sent; `drain`
/// only for final values after a clean verdict of all ranks. Both run piece by piece, inside start
/// and advance(). Null functions: the memory of the Collective is used as it is.
struct Edges {
  void* self = nullptr;
  void (*fill)(void* self, Range range, std::byte* bucket) = nullptr;
  void (*drain)(void* self, Range range, const std::byte* bucket, Scale scale) = nullptr;
  /// Where the elements can be read, or final ones written, without packing; null if they must be
  /// packed. Null functions: always.
  const std::byte* (*input)(void* self, Range range) = nullptr;
  std::byte* (*output)(void* self, Range range) = nullptr;
};

/// What becomes of reduced elements instead of being stored: their owner computes from them what
/// belongs into other shared memory of the same layout (an optimizer its parameters), and that goes
/// to all ranks. `apply` updates `outputs` from byte `offset` on.
struct FusedUpdate {
  void* self = nullptr;
  const std::byte* inputs = nullptr;  // where the layout begins in the memory of the elements
  std::byte* outputs = nullptr;       // and in the memory that is updated
  int64_t bytes = 0;                  // of the layout
  void (*apply)(void* self, int64_t offset, int64_t count, const std::byte* reduced) = nullptr;
};

/// A piece of memory that the ranks share.
struct Window {
  std::byte* data = nullptr;
  int64_t count = 0;  // elements
};

/// Queues of operations that are started in the same order on all ranks, with growing tags, so that
/// a backend need not match them by tag. A queue begins anew where the tag's upper bits (above
/// kQueueTagBits) change: all before is over, or was cancelled on all ranks.
inline constexpr int kNoQueue = -1;
inline constexpr int kQueues = 3;
inline constexpr int kQueueTagBits = 40;

/// Told of a part of an operation ("pack", "reduce", "unpack") that a device has done, and when it
/// was seen to begin and to be over; on the thread that calls host functions of streams, perhaps
/// after the operation's end.
using DeviceSpans =
    std::function<void(std::string_view part, Clock::time_point begin, Clock::time_point end)>;

/// What a Launch on a device's memory adds. The backend does all of it in order of a stream of its
/// own: awaits the events, packs, moves, unpacks and opens the gates; start() only submits.
struct DeviceLaunch {
  std::span<void* const> ready;  // recorded where the memory is ready to be read and written
  /// The tensors of a bucket (allreduce): packed into the Collective's memory, which has
  /// kLaneBytes more than the count says, and unpacked from there if no rank vetoes. Both empty:
  /// the Collective works where it is, and no rank may veto it.
  std::span<const Piece> inputs = {}, outputs = {};
  Scale prescale = {};
  std::span<uint64_t* const> gates =
      {};               // set to 1 when the outputs are written; see DeviceOutcome
  bool agreed = false;  // no rank vetoes it
  std::shared_ptr<const DeviceSpans> spans = {};  // null: nobody asks
};
/// Room for the veto lane behind a bucket on a device.
inline constexpr int64_t kLaneBytes = 16;

/// How a Collective is started: which operation it is on all ranks, and this rank's verdict.
struct Launch {
  uint64_t tag = 0;      // equal on all ranks, unique among running operations
  int queue = kNoQueue;  // operations of one queue are started in one order on all ranks
  /// This rank's, fixed now; 0 is go. Not 0: no output is written on any rank, and this rank's
  /// input is not read and may be null. Kinds that reduce and barrier take a verdict everywhere,
  /// the others only in a queue of a backend that packs_itself().
  uint32_t verdict = 0;
  int contributors = 0;  // the divisor of op average; 0: the number of ranks
  /// The caller waits: start() may look for its peers about so many times before it returns, and
  /// return null if the operation is done by then.
  int spins = 0;
  /// Queues: ranks must say the same name; empty: they are known to agree already.
  std::string_view name = {};
  uint64_t layout = 0;  // queues with a name: digest of the memory's strides, too; 0: row-major
  Edges edges;
  /// Queues: where the elements lie, one window after another, if all lie in one Region of the
  /// backend and at the same distances on all ranks. They are reduced where they are.
  std::span<const Window> windows = {};
  const FusedUpdate* update = nullptr;  // of the elements in the windows
  /// The memory is a device's. Such operations of one queue move in the order in which they were
  /// started. One that is cancelled is cancelled by all ranks that started it.
  const DeviceLaunch* device = nullptr;
};

class ExecutionPool;

/// Equal on all ranks.
struct ExecutorOptions {
  int64_t segment_bytes = 1 << 20;  // an allreduce, reduce or broadcast longer than this is cut
  int segments_in_flight = 2;       // of one operation, or of one queue of operations
};

/// Runs Collectives by Algorithms of their kind over one Transport. Keeps the schedules and the
/// memory of earlier operations, so that one like them allocates nothing.
///
/// Operations of a queue share segments_in_flight: the segments of one begin when all of the one
/// before have begun, so that any number of buckets may be started at once and what is in flight
/// stays small enough for a cache. Other operations run side by side.
class Executor {
 public:
  /// `hosts`: the host number of each rank, empty: all on one host. The transport must outlive the
  /// executor, and the executor its operations.
  Executor(Transport& transport, std::vector<int> hosts, const ExecutorOptions& options);
  ~Executor();

  /// Posts the first messages and returns.
  ///
  /// Kinds that reduce work in memory of the executor until the verdict of all ranks is known, so
  /// that a vetoed operation has written nothing; from then on straight in output, or where the
  /// edges say. With edges and neither input nor output the elements are packed segment by segment,
  /// if they cannot be used where they are. With edges and input and output, these are the bucket:
  /// elements are packed there and may change before the verdict. Throws Error(invalid_argument)
  /// for counts, root, dtype or op that make no sense.
  OperationPtr start(const Algorithm& algorithm, const Collective& collective,
                     const Launch& launch);
  /// What this rank's part of it sends, by its schedules.
  Traffic predict(const Algorithm& algorithm, const Collective& collective, const Launch& launch);
  /// How often memory was allocated.
  uint64_t allocations() const;

 private:
  std::unique_ptr<ExecutionPool> pool_;
};

}  // namespace tutti
