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

/// Virtual microseconds, from the start of the world or long.
using Micros = int64_t;
inline constexpr Micros kSecond = 1000000;

/// The peer of a receive that takes what whichever rank sends.
inline constexpr int32_t kAnyRank = -1;

/// One operation as the program asks for it. The world fills its input by fill_input()
/// (contents.h).
struct Operation {
  std::string name = {};
  CollectiveKind kind = CollectiveKind::allreduce;
  DataType dtype = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int64_t rows = 1;   // the first extent of its shape
  int64_t width = 0;  // the second one; 0: the shape is {rows}
  int32_t root = 0;   // rooted kinds; the peer of send and recv, or kAnyRank
  std::vector<int64_t> splits =
      {};                 // rows to each rank: alltoall, scatter at root, reduce_scatter;
                          // empty: equal parts, the remainder to the lowest ranks
  uint32_t contents = 0;  // seed of what the input holds

  int64_t row() const { return width == 0 ? 1 : width; }  // elements of a row
  int64_t count() const { return rows * row(); }
  int64_t bytes() const { return count() * size_of(dtype); }
  bool operator==(const Operation&) const = default;
};

/// A thread of the program does this next. It goes on with the next action once this one is over,
/// whether it ended well or with an error; the record keeps the error.
struct Action {
  enum class Kind : uint8_t {
    submit,    // `operations`, all at once, as one group if `text` names one; it does not wait
    wait,      // for the operation called `text` (or the group) that this script submitted last;
               // empty: for all that this script submitted and has not waited for
    block,     // makes one blocking call; two operations, a send and a receive, are sendrecv
    join,      // out of data, and waits for all others to join, unless `text` says that it goes on
    pause,     // does nothing for `time`
    allocate,  // takes memory that the ranks share, `time` bytes of it, in which later inputs lie
    retire,    // gives the memory of the last allocate back
    close      // closes the communicator; `text`: because of which error, empty: of its own accord
  };
  Kind kind = Kind::submit;
  std::vector<Operation> operations = {};
  std::string text = {};
  Micros time = 0;
  bool operator==(const Action&) const = default;
};
inline constexpr int kActionKinds = 8;

/// One thread of one rank. Two scripts of a rank use different names. The rank closes once its last
/// script has ended, if no script did before.
using Script = std::vector<Action>;

/// Something that goes wrong. It begins at the time `at`, or at the `event`-th step of `rank` if
/// that is not negative, or `at` after a rank first came to the phase `phase` if that is not
/// negative. It ends after `length`, or when the world heals. If `event` or
/// `phase` is set, a fault of the `amount`-th call hits the next call.
struct Fault {
  enum class Kind : uint8_t {
    kill,                // rank: its process ends
    stop,                // rank: stands still for `length`, then goes on
    jump,                // rank: its next step comes `length` late, so that its clock jumps
    reset,               // the link of rank and peer ends for both
    half_open,           // what rank writes to peer vanishes for `length`; over streams both ways
    delay,               // the link of rank and peer needs `amount` us more
    clog,                // nothing passes between rank and peer for `length`, and then all
    slow_link,           // the link of rank and peer passes `amount` bytes a second
    damage,              // the next control message from rank to peer has a wrong byte, `amount`
    record_late,         // the record of rank's death comes `length` late
    record_missing,      // it never comes
    record_of_other,     // first comes a record of rank's place by another incarnation
    store_slow,          // what rank reads from the store comes `length` late
    store_gone,          // rank reads nothing from the store any more
    launcher_slow,       // the launcher needs `length` for its answer to rank
    operation_fails,     // rank's `amount`-th operation on the backend fails by itself
    throws_in_start,     // the backend's start of that operation throws; bad_alloc if `peer` is 0
    throws_in_observer,  // the observer of rank throws at its `amount`-th call
    abandons             // rank never starts, and gives its communicator up at the time `at`
  };
  Kind kind = Kind::kill;
  int rank = 0;
  int peer = 0;
  Micros at = 0;
  int64_t event = -1;
  Micros length = 0;
  int64_t amount = 0;
  int phase = -1;  // the numbers are those of tutti::Phase
  bool operator==(const Fault&) const = default;
};
inline constexpr int kFaultKinds = 19;
/// A set of their kinds.
using FaultKinds = std::bitset<kFaultKinds>;

/// The ranks' backend is a model, the shipped one over streams, or that one with shared memory
/// beside it.
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
  // Messages from rank 0 to this rank take the whole latency, all others an eighth of it; 0: off.
  int far = 0;
  int64_t bandwidth = 0;             // bytes a second of a link; 0: without limit
  bool has_launcher = true;          // there are records of deaths
  bool cannot_cancel = false;        // the backend ends cancelled operations late (Gloo)
  bool fails_before_reason = false;  // its operations fail before it says why (UCX)
  bool works_elsewhere = false;      // its operations advance in threads of its own
  bool serves_blocking = true;       // it runs blocking calls without negotiation
  bool over_streams = false;  // the bytes tier: the shipped messages and schedules over streams
  bool over_memory = false;   // besides: the shared tier, with memory that all ranks reach
  int64_t buffer = 1 << 16;   // bytes of a stream that may be on their way each way
  int64_t splits = 0;         // so many of 1000 reads and writes move less than they could
  int64_t credit = 1 << 16;   // bytes of one peer that may wait for their receive
  int64_t segment_bytes = 1 << 20;  // an operation longer than this is cut
  // Shared memory. The first three are a tutti::Geometry.
  int64_t chunk_bytes = 4096;
  int64_t one_shot_bytes = 2048;
  int64_t in_place_bytes = 1 << 14;  // input that is as long is read where it lies
  int spins = 0;                     // so often a blocking call looks for its peers
  int lacks_memory = 0;              // this rank has no memory for pairs; 0: off
  Micros heals_at = 0;               // all faults are over from then on; 0: there are none to end
  uint64_t salt = 0;                 // of the choices of the schedule
  Tier tier() const {
    if (over_memory) return Tier::shared;
    return over_streams ? Tier::bytes : Tier::operations;
  }
  bool operator==(const World&) const = default;
};

/// All that one simulated run depends on.
struct Case {
  World world;
  std::vector<std::vector<Script>> ranks;  // one or two scripts a rank
  std::vector<Fault> faults;
  bool operator==(const Case&) const = default;
};

}  // namespace tutti::simulation
