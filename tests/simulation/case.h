#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/collectives/collective.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::simulation {

/// Virtual microseconds: a duration, or a time since the start of the world.
using Micros = int64_t;
inline constexpr Micros kSecond = 1000000;

/// The peer of a receive that takes a message of any rank.
inline constexpr int32_t kAnyRank = -1;

/// One operation that the program requests. The world fills its input by fill_input() (contents.h).
struct Operation {
  std::string name = {};
  CollectiveKind kind = CollectiveKind::allreduce;
  DataType dtype = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int64_t rows = 1;                  // the first extent of the shape
  int64_t width = 0;                 // the second extent; 0: the shape is {rows}
  int32_t root = 0;                  // the root, or the peer of send and recv, or kAnyRank
  std::vector<int64_t> splits = {};  // rows for each rank (alltoall, reduce_scatter, scatter at the
                                     // root); empty: equal parts, the remainder to the lowest ranks
  uint32_t contents = 0;             // seed of the input's contents

  int64_t row() const { return width == 0 ? 1 : width; }  // elements of a row
  int64_t count() const { return rows * row(); }
  int64_t bytes() const { return count() * size_of(dtype); }
  bool operator==(const Operation&) const = default;
};

/// One step of a program's thread. The thread goes on with the next action when this one has ended,
/// well or with an error. The record keeps the error.
struct Action {
  enum class Kind : uint8_t {
    submit,    // submits all of `operations` without waiting, as one group if `text` names one
    wait,      // waits for the last operation or group of this script with the name `text`; empty:
               // for all that this script has submitted and not yet waited for
    block,     // makes one blocking call; two operations, a send and a receive, are sendrecv
    join,      // is out of data, and waits until all ranks have joined, unless `text` is set
    pause,     // does nothing for `time`
    allocate,  // takes `time` bytes of shared memory, in which later inputs lie
    retire,    // gives the memory of the last allocate back
    close      // closes the communicator because of the error `text`; empty: of its own accord
  };
  Kind kind = Kind::submit;
  std::vector<Operation> operations = {};
  std::string text = {};
  Micros time = 0;
  bool operator==(const Action&) const = default;
};
inline constexpr int kActionKinds = 8;

/// One thread of one rank. Two scripts of a rank use different names. The rank closes after its
/// last script, unless a script has closed it before.
using Script = std::vector<Action>;

/// A fault. It begins at the time `at`. If `event` is not negative, it begins at that step of
/// `rank` instead. If `phase` is not negative, it begins `at` after a rank first reached that
/// phase. It ends after `length`, or when the world heals. A fault of the `amount`-th call hits the
/// next call if `event` or `phase` is set.
struct Fault {
  enum class Kind : uint8_t {
    kill,                // the process of rank ends
    stop,                // rank hangs for `length` and then goes on
    jump,                // the next step of rank comes `length` late, so that its clock jumps
    reset,               // the link of rank and peer ends on both sides
    half_open,           // what rank writes to peer is lost for `length`; over streams in both
                         // directions
    delay,               // the link of rank and peer needs `amount` us more
    clog,                // nothing passes between rank and peer for `length`; then everything
                         // arrives
    slow_link,           // the link of rank and peer passes only `amount` bytes a second
    damage,              // in the next control message from rank to peer, the byte `amount` is
                         // wrong
    record_late,         // the record of rank's death comes `length` late
    record_missing,      // the record of rank's death never comes
    record_of_other,     // first comes a record of another incarnation of rank
    store_slow,          // rank's reads of the store take `length` longer
    store_gone,          // the store never answers rank again
    launcher_slow,       // the launcher answers rank after `length`
    operation_fails,     // rank's `amount`-th operation on the backend fails without a cause
    throws_in_start,     // the start of rank's `amount`-th operation throws; bad_alloc if `peer` is
                         // 0
    throws_in_observer,  // the observer of rank throws at its `amount`-th call
    abandons             // rank never starts, and gives up its communicator at the time `at`
  };
  Kind kind = Kind::kill;
  int rank = 0;
  int peer = 0;
  Micros at = 0;
  int64_t event = -1;
  Micros length = 0;
  int64_t amount = 0;
  int phase = -1;  // a number of tutti::Phase, or -1
  bool operator==(const Fault&) const = default;
};
inline constexpr int kFaultKinds = 19;
/// A set of kinds of faults.
using FaultKinds = std::bitset<kFaultKinds>;

/// The backend under the ranks: a model, the shipped one over simulated streams, or the same with
/// shared memory.
enum class Tier : uint8_t { operations, bytes, shared };
inline constexpr std::array<std::string_view, 3> kTierNames = {"operations", "bytes", "shared"};

/// Describes where the ranks live and what their backend can do.
struct World {
  int size = 2;
  int replay_after = 2;
  int64_t fusion_bytes = 1024;
  int64_t partition_bytes = 1 << 20;
  int64_t cache_capacity = 4096;
  Micros peer_timeout = 10 * kSecond;
  Micros operation_timeout = 0;  // 0: off
  Micros stall_warning = 2 * kSecond;
  Micros latency = 100;
  // Only messages from rank 0 to this rank take the full latency; all others take an eighth of it.
  // 0: off.
  int far = 0;
  int64_t bandwidth = 0;             // bytes a second of a link; 0: without limit
  bool has_launcher = true;          // the launcher writes records of deaths
  bool cannot_cancel = false;        // the backend ends cancelled operations late (Gloo)
  bool fails_before_reason = false;  // its operations fail before it knows the reason (UCX)
  bool works_elsewhere = false;      // its operations advance in its own threads
  bool serves_blocking = true;       // the backend runs blocking calls without negotiation
  bool over_streams = false;  // the bytes tier: the shipped messages and schedules over streams
  bool over_memory = false;   // in addition: the shared tier, with memory that all ranks reach
  int64_t buffer = 1 << 16;   // bytes that may be under way in each direction of a stream
  int64_t splits = 0;         // how many of 1000 reads and writes move less than they could
  int64_t credit = 1 << 16;   // bytes of one peer that may wait for their receive
  int64_t segment_bytes = 1 << 20;  // a longer operation is cut into segments
  // Settings of shared memory. The first three are those of tutti::Geometry.
  int64_t chunk_bytes = 4096;
  int64_t one_shot_bytes = 2048;
  int64_t in_place_bytes = 1 << 14;  // an input of at least this size is read in place
  int spins = 0;                     // how often a blocking call polls its peers before it sleeps
  int lacks_memory = 0;              // this rank has no memory for pairs; 0: off
  Micros heals_at = 0;               // from then on there are no faults; 0: the case has none
  uint64_t salt = 0;                 // seed of the schedule's choices
  Tier tier() const {
    if (over_memory) return Tier::shared;
    return over_streams ? Tier::bytes : Tier::operations;
  }
  bool operator==(const World&) const = default;
};

/// The complete input of one simulated run.
struct Case {
  World world;
  std::vector<std::vector<Script>> ranks;  // one or two scripts for each rank
  std::vector<Fault> faults;
  bool operator==(const Case&) const = default;
};

}  // namespace tutti::simulation
