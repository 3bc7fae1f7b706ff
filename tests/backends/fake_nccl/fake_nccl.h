#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::test {

/// A fake NCCL with the same functions on the fake device. Ranks are threads of this process or
/// processes of one machine (see Settings::folder). It is a shared library, which the plugin loads
/// by its file name. A test that links to it controls and queries the copy that its own process
/// loaded. It checks how its callers use NCCL: see complaints().
class FakeNccl {
 public:
  struct Settings {
    uint64_t seed = 1;
    int version = 22809;
    /// Upper bound of the random time that a call stays "in progress" (ncclCommGetAsyncError)
    /// before it takes effect.
    std::chrono::microseconds most_call_delay{200};
    /// Upper bound of the random time after which a rank's results arrive.
    std::chrono::microseconds most_result_delay{200};
    /// Upper bound of the random time that a communicator takes to end.
    std::chrono::microseconds most_end_delay{5000};
    /// Refuses two ranks of one communicator on one device, as NCCL does without NCCL_HOSTID.
    bool refuse_shared_device = false;
    /// For ranks that are processes: a folder of this job through which the data goes. All ranks
    /// give the same folder, and the test removes it. When one rank's process ends, the others
    /// hang, as with NCCL within a host. Calls are compared when they run.
    std::string folder = {};
  };
  /// Resets all state; no communicator may exist.
  static void begin(const Settings& settings);
  /// Violations of NCCL's contract since the last begin(): two threads in one communicator; a call
  /// while another is in progress; ranks that differ in count, dtype, op or root; a call after
  /// abort or destroy; a group that was never ended, or opened twice; buffers that only some ranks
  /// registered; registered memory that was freed; a communicator that is split while an operation
  /// is outstanding, or after a different number of collectives on another rank; a blocking
  /// communicator; a communicator that was neither destroyed nor aborted.
  static std::vector<std::string> complaints();

  /// From their next operation on, the communicators of this rank take part in nothing, as if its
  /// process were stopped or gone.
  static void hang(int rank);
  /// The communicators of this rank report this asynchronous error (an ncclResult_t) and hang.
  static void fail(int rank, int result);
  /// The number of operations that completed, over all ranks.
  static int64_t completed();
  static int64_t aborts();
  /// The number of registrations ever made, and of those that still exist.
  static int64_t registrations_made();
  static int64_t registrations();
  /// The settings that each communicator received, as "min_ctas=4 net_name=Socket". Settings that
  /// this version does not know are missing.
  static std::vector<std::string> configs();
  /// The number of communicators that are not yet destroyed or aborted; of unique ids; of
  /// ncclCommSplit calls; and of those calls that had no color, over all ranks.
  static int64_t living();
  static int64_t unique_ids();
  static int64_t splits();
  static int64_t splits_without_color();
};

}  // namespace tutti::test
