#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "tutti/collectives/collective.h"
#include "tutti/collectives/schedule.h"
#include "tutti/collectives/transport.h"

namespace tutti {

enum class OperationState : uint8_t { pending, done, vetoed, failed };

/// A running collective. advance() moves it without blocking; after any other state than pending
/// the caller destroys it. One thread at a time.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual OperationState advance() = 0;
  /// Gives up: the operation touches user memory and regions no more once advance() says other than
  /// pending, as it soon will.
  virtual void cancel() = 0;
};

/// The caller's functions at both ends of an operation: they pack into and unpack from the bucket.
/// `fill` runs for every element before it is sent; `drain` only for final values after a clean
/// verdict of all ranks. Null functions: the memory is used as it is.
struct Edges {
  void* self = nullptr;
  void (*fill)(void* self, Range range) = nullptr;
  void (*drain)(void* self, Range range, Scale scale) = nullptr;
};

/// How a Collective is started: which operation it is on all ranks, and this rank's verdict.
struct Launch {
  uint64_t tag = 0;        // equal on all ranks, unique among running operations
  uint32_t verdict = 0;    // this rank's, fixed now; 0 is go. Not 0: the input is not read and
                           // nothing is drained anywhere
  int contributors = 0;    // the divisor of op average; 0: the number of ranks
  Edges edges;
};

/// Runs one Collective by a Schedule over a Transport. With edges, `fill` is called when the
/// operation begins and `drain` when all of it is final and clean; without drain the scale is
/// applied in place. Scratch comes from `allocate_scratch` (kept by the caller for reuse).
struct ExecutorOptions {
  int64_t segment_bytes = 1 << 20;  // a collective longer than this runs in several segments
  int segments_in_flight = 2;
};

std::unique_ptr<Operation> execute(Transport& transport, const Algorithm& algorithm,
                                   const Collective& collective, const Launch& launch,
                                   std::span<const int> hosts, const ExecutorOptions& options);

}  // namespace tutti
