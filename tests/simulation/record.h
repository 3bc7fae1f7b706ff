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

/// The position of an operation in a case.
struct Site {
  int rank = 0;
  int script = 0;
  int action = 0;
  int operation = 0;  // index in a submit of several operations, or in a sendrecv
  auto operator<=>(const Site&) const = default;
};

inline constexpr Micros kNever = -1;

/// The result of one operation (or join) on one rank. The members of a group have adjacent records,
/// all with the group's error.
struct OperationRecord {
  Site site;
  std::string name;
  Micros submitted = kNever;  // time of the submission
  bool is_refused = false;    // the call threw, so there was no Work
  Micros ended = kNever;      // when its Work was done or the blocking call returned, or kNever
  int error_code = 0;         // an ErrorCode; 0: it ended well
  int error_rank = -1;
  std::string error_text;
  // The program's result, if the operation ended well. It is empty if this rank gets nothing.
  std::vector<std::byte> output;
  int source = -1;  // the sender, of a receive
  // The operation's memory (its input and the program's output) differs from that at its
  // submission.
  bool input_changed = false;
  bool touched_after_end = false;  // its memory was written after its Work was done
  bool is_reached = false;         // its output lay in memory that peers reach
  int callbacks = 0;               // how often its callback ran
};

/// One operation that a rank started on its backend.
struct StartRecord {
  Micros at = 0;
  uint64_t queue = 0;  // the queue of all ranks if 0, else of a pair
  uint64_t tag = 0;    // grows in each queue, in the same order on all ranks
  std::string names;   // its kind, or "pair" or "blocking"
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

/// A rank's counters at the end of a wait.
struct StepRecord {
  uint64_t negotiation_messages = 0;  // sent so far
  uint64_t allocations = 0;           // made so far
};

struct RankRecord {
  std::vector<PhaseRecord> phases;
  Micros broken = kNever;          // when its communicator broke
  Micros farewell = kNever;        // when it sent its farewell
  Micros closing = kNever;         // when its program asked to close
  Micros over = kNever;            // when it had closed
  bool tells_launcher = false;     // it reports its closing error to the launcher
  std::string closing_error = {};  // the error because of which it closes, or ""
  Micros killed = kNever;
  std::vector<std::pair<Micros, Micros>> stopped;  // the periods in which it hung: from, until
  std::vector<StartRecord> starts;                 // in the order of the starts
  std::vector<BucketRecord> buckets;               // in the order of the starts
  std::array<uint64_t, 14> messages{};             // messages sent, by tutti::MessageType
  int operation_messages_after_farewell = 0;       // of operations, after its farewell
  std::vector<Micros> idle_pings;                  // pings sent while nothing was pending
  uint64_t negotiation_messages = 0;               // requests and answers that it sent
  std::vector<StepRecord> steps;                   // one for each wait of its program
  // The counts of its statistics.
  uint64_t allreduces_counted = 0;             // accepted allreduces by name
  uint64_t blocking_counted = 0;               // blocking calls of all ranks that ended
  uint64_t pairs_counted = 0;                  // blocking sends and receives that it began
  uint64_t batches = 0;                        // submits of its program
  uint64_t most_steps_in_vain = 0;             // most steps in a row at one time and without input
  bool sleeps_with_something_pending = false;  // at the end of the world
  bool went_on_at_a_look = false;              // it could go on, but nothing had woken it
  int regions_retired = 0;                     // allocations that were given back and freed
  bool memory_retired_in_use = false;
  bool memory_written_late = false;  // a peer wrote to it after it was given back
  int error_code = 0;                // the error that broke it; 0: none
  int error_rank = -1;
  std::string error_text;
  // What is left when the world is over.
  int entries_left = 0;
  int runs_left = 0;
  int tickets_left = 0;  // also credit and announcements
  int regions_left = 0;
};

/// Events in shared memory.
enum class Sight : uint8_t {
  start,         // an operation began there
  many_chunks,   // an operation was cut
  veto,          // an operation ended because of a veto
  cancel,        // an operation was cancelled while it was pending
  join,          // a joined rank took part in an operation
  pair,          // a blocking send or receive
  blocking,      // a blocking call of all ranks
  done_at_once,  // an operation was done when its start returned
  shared_input,  // the input lay in memory that the peers reach
  direct,        // an input was reduced in place
  no_memory,     // a rank had no memory for a pair
  ring           // a sleeping rank was woken
};
inline constexpr int kSights = 12;
using Sights = std::bitset<kSights>;

/// The input of the invariants. The world fills it.
struct Record {
  std::vector<OperationRecord> operations;  // in the order of the submissions
  std::vector<RankRecord> ranks;
  Micros damaged = kNever;                   // when the first damaged message was written
  FaultKinds faults;                         // the kinds of faults that had an effect
  Sights sights;                             // the events in shared memory
  bool memory_ran_out = false;               // a damaged message may ask for any amount
  bool hit_the_limit = false;                // the world was cut off: too many events, or too late
  std::vector<std::string> broken_promises;  // errors that the world itself found, one line each
};

}  // namespace tutti::simulation
