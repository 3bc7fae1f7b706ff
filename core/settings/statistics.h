#pragma once

#include <cstdint>
#include <vector>

namespace tutti {

/// The counters of a Communicator. They only grow.
struct Statistics {
  uint64_t operations = 0;        // Works and blocking calls that completed or failed
  uint64_t tensors = 0;           // in allreduces; a blocking call in shared memory counts as one
  uint64_t buckets = 0;           // launched: fused buckets, and replayed operations of other kinds
  uint64_t replayed_buckets = 0;  // of these, without negotiation
  uint64_t vetoed_buckets = 0;    // replayed buckets that were dropped and renegotiated
  uint64_t plans_locked = 0;      // how often replay began
  uint64_t data_messages = 0;     // sent by this rank
  uint64_t data_bytes = 0;        // in them
  // Predicted by the plans for the replayed buckets. data_messages and data_bytes grow by the same
  // numbers if nothing else runs.
  uint64_t predicted_messages = 0;
  uint64_t predicted_bytes = 0;
  uint64_t control_messages = 0;      // sent by this rank: negotiation and the transport's own
  uint64_t control_bytes = 0;         // in them
  uint64_t negotiation_messages = 0;  // sent by this rank: requests and responses alone
  uint64_t wakeups = 0;               // times the background thread woke
  uint64_t allocations = 0;           // on the data path
  uint64_t copied_bytes = 0;          // data copied into and out of the slots of shared memory
  uint64_t caller_runs = 0;           // waits in which the caller drove the engine
  // Time that callers spent in wait(), and in blocking calls whose peers were so late that the
  // caller stopped spinning. (That is after some 10 us; to read the clock earlier would cost the
  // other calls too much.) If a caller drove the engine itself, its time is one of two kinds.
  // Either data moved or was on its way, or other ranks had not arrived.
  double wait_seconds = 0;              // in all
  double exposed_seconds = 0;           // of it, data moved
  double skew_seconds = 0;              // of it, others were late
  std::vector<uint64_t> bytes_to_peer;  // to each rank, with control messages and framing
};

}  // namespace tutti
