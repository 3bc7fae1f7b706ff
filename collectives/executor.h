#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/collectives/collective.h"
#include "tutti/collectives/schedule.h"
#include "tutti/collectives/transport.h"

namespace tutti {

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

/// How a Collective is started: which operation it is on all ranks, and this rank's verdict.
struct Launch {
  uint64_t tag = 0;      // equal on all ranks, unique among running operations
  int queue = kNoQueue;  // operations of one queue are started in one order on all ranks
  uint32_t verdict = 0;  // this rank's, fixed now; 0 is go. Not 0 (kinds that reduce, and barrier):
                         // the input is not read and nothing is drained anywhere
  int contributors = 0;  // the divisor of op average; 0: the number of ranks
  /// Queues: ranks must say the same name; empty: they are known to agree already.
  std::string_view name = {};
  Edges edges;
  /// Queues: where the elements lie, one window after another, if all lie in one Region of the
  /// backend and at the same distances on all ranks. They are reduced where they are.
  std::span<const Window> windows = {};
  const FusedUpdate* update = nullptr;  // of the elements in the windows
};

/// Equal on all ranks.
struct ExecutorOptions {
  int64_t segment_bytes = 1 << 20;  // an allreduce, reduce or broadcast longer than this is cut
  int segments_in_flight = 2;
};

/// Runs one Collective by an Algorithm of its kind over a Transport; posts the first messages and
/// returns. Scratch is allocated here, once.
///
/// With `drain` the caller gets the final values and the scale that is still to be applied. Without
/// it, kinds that reduce work in scratch and the scaled results are written to output segment by
/// segment once the verdict of all ranks is known, so that a vetoed operation has written nothing
/// (with `drain`: nothing but input and output themselves, the bucket). Throws
/// Error(invalid_argument) for counts, root, dtype or op that make no sense.
OperationPtr execute(Transport& transport, const Algorithm& algorithm, const Collective& collective,
                     const Launch& launch, std::span<const int> hosts,
                     const ExecutorOptions& options);

}  // namespace tutti
