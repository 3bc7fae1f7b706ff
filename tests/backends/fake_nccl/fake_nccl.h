#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::test {

/// The tests' NCCL: the same functions over the tests' fake device, for ranks that are threads of
/// this process, or processes of one machine (see Settings::folder). A shared library, which the
/// plugin loads by its file; a test that links to it steers and asks the same copy, which is that
/// of its process. It judges who uses it: see complaints().
class FakeNccl {
 public:
  struct Settings {
    uint64_t seed = 1;
    int version = 22809;
    /// Calls take effect after ncclCommGetAsyncError has said "in progress" for up to this long.
    std::chrono::microseconds most_call_delay{200};
    /// So long may a rank's results come after they are computed.
    std::chrono::microseconds most_result_delay{200};
    /// So long may a communicator take to end.
    std::chrono::microseconds most_end_delay{5000};
    /// Ranks of one world on one device are refused, as by NCCL without NCCL_HOSTID.
    bool refuse_shared_device = false;
    /// Of ranks that are processes: a folder of this job alone, through which their data goes. All
    /// give the same, and the test removes it. When one of them ends, the others hang, as those of
    /// NCCL do within a host. What they call is compared when it runs.
    std::string folder = {};
  };
  /// Forgets all that was; no communicator may live.
  static void begin(const Settings& settings);
  /// What was done that NCCL's contract forbids, since the last begin(): two threads in one
  /// communicator; a call while another is in progress; count, dtype, op or root that differ
  /// between ranks; a call after abort or destroy; a group that was never ended, or opened twice;
  /// buffers that one rank registered and another did not; registered memory that is freed; a
  /// communicator that is split while an operation is outstanding, or at another place among the
  /// calls of another rank; one that blocks; one that is neither destroyed nor aborted in the end.
  static std::vector<std::string> complaints();

  /// The communicators of this rank take part in nothing from their next operation on, as if its
  /// process were stopped or gone.
  static void hang(int rank);
  /// They report this asynchronous error (a ncclResult_t), and hang.
  static void fail(int rank, int result);
  /// Operations that ran to their end, over all ranks.
  static int64_t completed();
  static int64_t aborts();
  /// Registrations that were made and that stand.
  static int64_t registrations_made();
  static int64_t registrations();
  /// What each communicator was told, as "min_ctas=4 net_name=Socket"; as much of it as this
  /// version reads.
  static std::vector<std::string> configs();
  /// Communicators that are neither destroyed nor aborted to the end; unique ids that were given
  /// out; calls of ncclCommSplit, and those without a color, over all ranks.
  static int64_t living();
  static int64_t unique_ids();
  static int64_t splits();
  static int64_t splits_without_color();
};

}  // namespace tutti::test
