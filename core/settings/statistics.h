#pragma once

#include <cstdint>
#include <vector>

namespace tutti {

/// What a Communicator has done since it was made. Counters only grow.
struct Statistics {
  uint64_t operations = 0;          // Works and blocking calls that ended, well or not
  uint64_t tensors = 0;             // of allreduces; a blocking call in shared memory is one
  uint64_t buckets = 0;             // fused buckets, and other kinds' replayed operations, launched
  uint64_t replayed_buckets = 0;    // of these, without negotiation
  uint64_t vetoed_buckets = 0;      // replayed buckets that were dropped and renegotiated
  uint64_t plans_locked = 0;        // how often replay began
  uint64_t data_messages = 0;       // sent by this rank
  uint64_t data_bytes = 0;          // in them
  uint64_t predicted_messages = 0;  // of the replayed buckets, by what their plan says beforehand:
  uint64_t predicted_bytes = 0;     // the two above grow as these do where nothing else runs
  uint64_t control_messages = 0;    // sent by this rank: negotiation and the transport's own
  uint64_t control_bytes = 0;       // in them
  uint64_t negotiation_messages = 0;  // sent by this rank: requests and responses alone
  uint64_t wakeups = 0;               // times the background thread woke
  uint64_t allocations = 0;           // on the data path
  uint64_t copied_bytes = 0;          // data copied into and out of the slots of shared memory
  uint64_t caller_runs = 0;           // waits that drove the engine themselves
  // Time that callers spent in wait(), and in blocking calls for which the peers were so late that
  // the caller stopped spinning (some 10 us; to look at the clock would cost the others too much).
  // Of a thread that moved things itself it is either time in which data moved or was on its way,
  // or time in which other ranks had not come.
  double wait_seconds = 0;              // in all
  double exposed_seconds = 0;           // of it, data moved
  double skew_seconds = 0;              // of it, others were late
  std::vector<uint64_t> bytes_to_peer;  // sent, control and framing included, one number a rank
};

}  // namespace tutti
