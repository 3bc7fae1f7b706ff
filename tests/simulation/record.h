#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/case.h"

namespace tutti::simulation {

/// Names the place of an operation in a case.
struct Site {
  int rank = 0;
  int script = 0;
  int action = 0;
  int operation = 0;  // of a submit with several, or of a sendrecv
  auto operator<=>(const Site&) const = default;
};

inline constexpr Micros kNever = -1;

/// Tells what became of one operation (or join) on one rank. Members of a group have one each, side
/// by side, and all of them have the group's error.
struct OperationRecord {
  Site site;
  std::string name;
  Micros submitted = kNever;  // it was asked for
  bool is_refused = false;    // the call threw, so that there never was a Work
  Micros ended = kNever;      // its Work was done, or the blocking call came back; kNever: neither
  int error_code = 0;         // 0: it ended well; else an ErrorCode
  int error_rank = -1;
  std::string error_text;
  // The program got this, if it ended well; it is empty if its kind gives this rank nothing.
  std::vector<std::byte> output;
  int source = -1;  // of a receive: from which rank it came
  // Its memory (of the input, and the program's output) is not as it was when it was submitted.
  bool input_changed = false;
  bool touched_after_end = false;  // its memory was written after its Work was done
  bool is_reached = false;         // its output lay in memory that the peers reach
  int callbacks = 0;               // how often its callback ran
};

/// One operation on a backend: what was started, in the order of each rank.
struct StartRecord {
  Micros at = 0;
  uint64_t queue = 0;  // 0: of all ranks; else the pair's
  uint64_t tag = 0;    // grows in each queue, alike on all ranks
  std::string names;   // its kind, "pair" or "blocking"
};

/// How a rank took part in a bucket of a plan: with its tensors, or with a veto.
struct BucketRecord {
  Micros at = 0;
  uint64_t plan = 0;
  uint64_t sequence = 0;
  bool vetoes = false;
};

/// A change of a rank's phase; the numbers are those of tutti::Phase.
struct PhaseRecord {
  int from = 0;
  int to = 0;
};

/// How far a rank was at the end of a wait.
struct StepRecord {
  uint64_t negotiation_messages = 0;  // sent so far
  uint64_t allocations = 0;           // made so far
};

struct RankRecord {
  std::vector<PhaseRecord> phases;
  Micros broken = kNever;          // the door was broken
  Micros farewell = kNever;        // it said farewell
  Micros closing = kNever;         // its program asked to close
  Micros over = kNever;            // closing was over
  bool tells_launcher = false;     // of the error because of which it closes
  std::string closing_error = {};  // which that is; empty: it closes of its own accord
  Micros killed = kNever;
  std::vector<std::pair<Micros, Micros>> stopped;  // stood still from, until
  std::vector<StartRecord> starts;                 // in order
  std::vector<BucketRecord> buckets;               // in order
  std::array<uint64_t, 14> messages{};             // sent, by tutti::MessageType
  int operation_messages_after_farewell = 0;       // messages about operations that it sent
  std::vector<Micros> idle_pings;                  // when it sent a ping though nothing was pending
  uint64_t negotiation_messages = 0;               // of which it sent requests and answers
  std::vector<StepRecord> steps;                   // one a wait of its program
  // So many it has counted.
  uint64_t allreduces_counted = 0;             // taken, by name
  uint64_t blocking_counted = 0;               // calls of all ranks that are over
  uint64_t pairs_counted = 0;                  // blocking sends and receives that it began
  uint64_t batches = 0;                        // submits of its program
  uint64_t most_steps_in_vain = 0;             // steps in a row at one time and without input
  bool sleeps_with_something_pending = false;  // when no event was left
  bool went_on_at_a_look = false;              // nothing had woken it, though it could have gone on
  int regions_retired = 0;                     // memory that its program gave back is gone
  bool memory_retired_in_use = false;
  bool memory_written_late = false;  // by a peer, when it was given back
  int error_code = 0;                // what broke it; 0: nothing did
  int error_rank = -1;
  std::string error_text;
  // So many are left once it is over.
  int entries_left = 0;
  int runs_left = 0;
  int tickets_left = 0;  // and credit, announcements
  int regions_left = 0;
};

/// Ranks may do these in shared memory.
enum class Sight : uint8_t {
  start,         // an operation began there
  many_chunks,   // one that is cut
  veto,          // one was over because of a veto
  cancel,        // one was cancelled while it was pending
  join,          // one that a rank takes part in with nothing
  pair,          // a blocking send or receive
  blocking,      // a blocking call
  done_at_once,  // one that was over when its start came back
  shared_input,  // one whose input lies in memory that the peers reach
  direct,        // one that is reduced where it lies
  no_memory,     // a rank had no memory for a pair
  ring           // a rank that slept was rung
};
inline constexpr int kSights = 12;
using Sights = std::bitset<kSights>;

/// All that the invariants look at. The world fills it.
struct Record {
  std::vector<OperationRecord> operations;  // in the order in which they were submitted
  std::vector<RankRecord> ranks;
  Micros damaged = kNever;                   // the first message with a wrong byte was written
  FaultKinds faults;                         // those that had something to spoil
  Sights sights;                             // what was done in shared memory
  bool memory_ran_out = false;               // a damaged message may ask for all there is
  bool hit_the_limit = false;                // the world was cut off: too many events or too late
  std::vector<std::string> broken_promises;  // what the world itself saw go wrong, a line each
};

}  // namespace tutti::simulation
