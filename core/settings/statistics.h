#pragma once

#include <cstdint>
#include <vector>

namespace tutti {

/// The counters of a Communicator. They only grow.
struct Statistics {
  uint64_t operations = 0;  // Works and blocking calls that completed or failed
  uint64_t tensors = 0;     // tensors of allreduces; a blocking call in shared memory counts as one
  uint64_t buckets = 0;     // fused buckets launched, and replayed operations of other kinds
  uint64_t replayed_buckets = 0;  // part of `buckets`: needed no negotiation
  uint64_t vetoed_buckets = 0;    // replayed buckets that a rank refused (vetoed)
  uint64_t plans_locked = 0;      // number of times that replay began
  uint64_t data_messages = 0;     // sent by this rank
  uint64_t data_bytes = 0;        // bytes of data_messages
  // The messages and bytes that the plans predicted for the replayed buckets. If nothing else runs,
  // data_messages and data_bytes grow by the same amounts.
  uint64_t predicted_messages = 0;
  uint64_t predicted_bytes = 0;
  uint64_t control_messages = 0;      // sent by this rank: negotiation and the transport's messages
  uint64_t control_bytes = 0;         // bytes of control_messages
  uint64_t negotiation_messages = 0;  // sent by this rank: only requests and answers
  uint64_t wakeups = 0;               // number of times the background thread woke
  uint64_t allocations = 0;           // memory allocations on the data path
  uint64_t copied_bytes = 0;          // data copied into and out of the slots of shared memory
  uint64_t caller_runs = 0;           // waits in which the waiting thread itself ran the engine
  // Time that callers spent in wait(), and in blocking calls whose peers were late. A blocking call
  // counts from the moment when its caller stops spinning, after some 10 us. (Reading the clock
  // earlier would slow down the other calls too much.) If the caller itself ran the engine, its
  // time is also added to one of the next two counters. exposed_seconds is time in which data moved
  // or was on its way. skew_seconds is time in which other ranks had not arrived.
  double wait_seconds = 0;     // the whole time
  double exposed_seconds = 0;  // part of wait_seconds in which data moved
  double skew_seconds = 0;     // part of wait_seconds in which other ranks were late
  // Bytes that this rank sent to each rank, including control messages and framing.
  std::vector<uint64_t> bytes_to_peer;
};

}  // namespace tutti
