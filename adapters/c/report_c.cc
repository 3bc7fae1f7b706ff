// The C interface's statistics and timeline.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tutti/adapters/c/status.h"
#include "tutti/adapters/c/tutti.h"
#include "tutti/adapters/c/values.h"

namespace tutti::c {

namespace {

Clock::time_point time_from(double seconds, const char* what) {
  // A nanosecond clock can count about three centuries.
  if (!(seconds >= 0 && seconds < 9e9))
    throw refused(fmt::format("{} is {} (expected seconds of CLOCK_MONOTONIC)", what, seconds));
  return Clock::time_point(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
}

}  // namespace

}  // namespace tutti::c

using namespace tutti;     // NOLINT: the functions below are the C side of that namespace
using namespace tutti::c;  // NOLINT

int tutti_get_statistics(tutti_comm_t comm, tutti_statistics_t* statistics) {
  return guarded([&] {
    need(statistics, "statistics");
    const size_t size = statistics->struct_size;
    if (size < sizeof size)
      throw refused(fmt::format("struct_size of the statistics is {} (expected {})", size,
                                sizeof *statistics));
    const auto now = communicator_of(comm).statistics();
    const tutti_statistics_t all = {
        .struct_size = std::min(size, sizeof all),
        .operations = now.operations,
        .tensors = now.tensors,
        .buckets = now.buckets,
        .replayed_buckets = now.replayed_buckets,
        .vetoed_buckets = now.vetoed_buckets,
        .data_messages = now.data_messages,
        .data_bytes = now.data_bytes,
        .control_messages = now.control_messages,
        .control_bytes = now.control_bytes,
        .wakeups = now.wakeups,
        .allocations = now.allocations,
        .wait_seconds = now.wait_seconds,
        .exposed_seconds = now.exposed_seconds,
        .skew_seconds = now.skew_seconds,
        .plans_locked = now.plans_locked,
        .predicted_messages = now.predicted_messages,
        .predicted_bytes = now.predicted_bytes,
        .negotiation_messages = now.negotiation_messages,
        .caller_runs = now.caller_runs,
        .copied_bytes = now.copied_bytes,
    };
    std::memcpy(statistics, &all, all.struct_size);
  });
}

int tutti_get_bytes_to_peers(tutti_comm_t comm, uint64_t* bytes, size_t capacity, size_t* count) {
  return guarded([&] {
    need(count, "count");
    if (capacity > 0) need(bytes, "bytes");
    const auto sent = communicator_of(comm).statistics().bytes_to_peer;
    *count = sent.size();
    std::copy_n(sent.begin(), std::min(capacity, sent.size()), bytes);
  });
}

int tutti_start_timeline(tutti_comm_t comm, const char* file) {
  return guarded([&] {
    need(file, "file");
    communicator_of(comm).start_timeline(file);
  });
}

int tutti_stop_timeline(tutti_comm_t comm) {
  return guarded([&] { communicator_of(comm).stop_timeline(); });
}

int tutti_timeline_span(tutti_comm_t comm, const char* name, double begin, double end) {
  return guarded([&] {
    auto& communicator = communicator_of(comm);
    need(name, "name");
    if (end < begin)
      throw refused(fmt::format("\"{}\" ends {} s before it begins", name, begin - end));
    communicator.timeline_span(name, time_from(begin, "begin"), time_from(end, "end"));
  });
}
