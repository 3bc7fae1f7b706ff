#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/core/agreement/messages.h"
#include "tutti/core/scheduling/peers.h"
#include "tutti/core/scheduling/plan_follower.h"
#include "tutti/core/scheduling/prepared_pairs.h"
#include "tutti/core/scheduling/run.h"
#include "tutti/core/settings/options.h"
#include "tutti/core/settings/statistics.h"
#include "tutti/core/watch/timeline.h"

namespace tutti {

/// The queues of Launch. All ranks launch the operations of one queue in the same order.
inline constexpr int kNegotiatedQueue = 0;
inline constexpr int kReplayedQueue = 1;
inline constexpr int kBlockingQueue = 2;

/// One rank's side of the scheduling. It asks the coordinator on rank 0 for submitted operations,
/// launches the operations that the coordinator answers or that the plan contains, advances them,
/// and reports ended entries to the engine. Only the thread that currently runs the engine calls
/// it.
class Scheduler {
 public:
  struct Hooks {
    std::function<void(int rank, std::span<const std::byte>)> send;     // sends a control message
    std::function<void(std::span<Entry* const>, const Error*)> finish;  // entries have ended
    std::function<void()> on_its_way;                // streams may now wait for unfinished Works
    std::function<void(const std::string&)> broken;  // an operation failed; ends the communicator
    std::function<void(const std::string&)> log;
  };
  /// `peers` knows which ranks have left and what they had finished. Operations that such a rank
  /// has not finished fail as soon as nothing uses their memory any more. All other operations go
  /// on.
  Scheduler(const Options& options, Backend& backend, const Peers& peers, int rank, int size,
            Statistics& statistics, Timeline& timeline, Hooks hooks);

  void submit(Entry* entry, Clock::time_point now);
  /// Called when this rank is out of data. The rank then takes part in later operations without
  /// data.
  void join(Entry* entry, Clock::time_point now);
  /// Sends the requests that were made since the last flush().
  void flush();

  void on_answers(WireReader reader, Clock::time_point now);
  void on_resend(WireReader reader);
  void on_veto(const Veto& veto);
  void on_pair_left(int from, WireReader reader);
  void on_pair_recalled(int from, WireReader reader);

  /// Launches and advances operations. Returns true if any operation made progress.
  bool advance(Clock::time_point now);
  /// Returns whether advance() can make progress although nothing arrives. A thread must check this
  /// before it stops calling advance().
  bool can_go_on();
  /// Returns the time at which advance() must be called even if nothing arrives.
  Clock::time_point next_deadline() const { return next_deadline_; }

  /// Forgets all operations and ends those that run. The engine finishes their entries.
  void drop();
  /// Returns what this rank has finished. The rank sends this to its peers before it closes.
  Farewell farewell();
  /// If `entry` is submitted now and can never complete because a rank has departed, returns that
  /// rank's error. Otherwise returns null. A collective needs all ranks. A send or receive needs
  /// only its peer. A join needs the ranks that have joined less often.
  const Error* departure_that_ends(const Entry& entry) const;

  /// Returns whether this rank has neither a pending operation nor a pending join.
  bool idle() const {
    return runs_.empty() && outstanding_.empty() && waiting_.empty() && !plan_.holds_waiting() &&
           join_.entry == nullptr;
  }
  /// Returns whether the next advance() ends operations that need a departed rank.
  bool has_doomed() const { return !doomed_.empty(); }
  /// Returns the number of bytes that the program must still submit before the next bucket can be
  /// launched. 0: any submission may allow progress.
  int64_t bytes_awaited() const {
    const bool awaits = plan_.holds_waiting() && plan_.state() == PlanFollower::State::following;
    return awaits && outstanding_.empty() ? plan_.replay().missing_bytes() : 0;
  }
  uint32_t plan_id() const { return plan_.has_plan() ? plan_.plan().id : 0; }
  /// Returns the time at which a waiting thread should check whether the plan still fits.
  Clock::time_point next_look() const { return plan_.look_at(); }
  RankStatus status() const;
  /// Returns the name of any operation that has not started yet, or an empty name.
  std::string first_pending() const;
  /// Returns whether a thread of this rank waits for an operation of this name.
  bool is_awaited(std::string_view name) const;
  /// Returns whether the oldest operation only waits for ranks that have not arrived. Also returns
  /// true if nothing runs.
  bool lacks_ranks() const { return runs_.empty() || runs_.front()->operation()->lacks_ranks(); }
  /// The running operations, for reports.
  const std::vector<std::unique_ptr<Run>>& runs() const { return runs_; }
  /// Returns a text such as "bucket 7 (\"fc1.weight\" and 3 more)".
  static std::string describe(const Run& run);
  uint64_t allocations() const { return pool_.allocations() + allocations_; }

 private:
  static constexpr int kMostRunning = 8;  // limit of negotiated operations at the same time
  void finish(Entry* entry, const Error* error) { hooks_.finish({&entry, 1}, error); }
  /// Sends this rank's pending join to rank 0, unless it was sent before. Does nothing while
  /// another operation must be requested first.
  void ask_to_join();
  void send_join();
  /// If a departure keeps this rank's join number `number` from ever completing, returns it, else
  /// null.
  const Departure* departure_that_ends_join(uint64_t number) const;
  void request(Entry* entry);
  void on_response(const Response& response, std::vector<Response>& fusable);
  void launch_fused(std::vector<Response>& fusable);
  /// Returns the device on which the backend works on a bucket.
  Device device_of(const BucketKey& key) const;
  void begin_plan(Plan plan, Clock::time_point now);
  bool follow_plan(Clock::time_point now);
  void launch_bucket(Clock::time_point now);
  bool launch_negotiated(Clock::time_point now);
  static bool arrived(std::span<Entry* const> entries, std::span<const BucketSlice> slices);
  std::unique_ptr<Run> plan_run(std::vector<Entry*> entries);
  bool next_arrived();
  void check_memory(const Entry& entry) const;
  void start(std::unique_ptr<Run> run, uint32_t verdict, Clock::time_point now);
  void veto(Clock::time_point now, PlanFollower::Next why = PlanFollower::Next::veto);
  void collapse(uint64_t sequence, Clock::time_point now);
  void renegotiate();
  void finish_run(Run& run, Clock::time_point now);
  void finish_slices(Run& run, Clock::time_point now);
  Entry* take_outstanding(const std::string& key);
  /// Returns the operations that were requested and not answered, in order of submission.
  std::vector<Entry*> outstanding_in_order() const;
  // --- scheduler_pairs.cc ---
  void prepare_pair(const Response& response, const Entry& entry);
  bool launch_in_pair(Entry* entry, Clock::time_point now);
  bool leave_pairs(std::span<PreparedPair* const> pairs);
  void tell_pair_left(int peer, int64_t id, uint64_t use);
  void leave_pair(PreparedPair& pair);
  void end_pair(const PreparedPair& pair, uint64_t finished);
  bool finish_in_pair(std::unique_ptr<Run>& run, OperationState state, Clock::time_point now);
  void ask_behind_pairs();
  // --- scheduler_farewell.cc ---
  const Departure* departure_that_dooms(const Run& run) const;
  bool is_doomed(const Entry* entry) const;
  void doom(std::span<Entry* const> entries, int rank);
  bool end_what_is_doomed();
  bool break_what_cannot_be_cancelled(Clock::time_point now);
  bool is_unexpected(const Run& failed) const;
  bool awaits_cause(Run& failed, Clock::time_point now);

  const Options& options_;
  Backend& backend_;
  const Peers& peers_;
  const int rank_;
  const int size_;
  Statistics& statistics_;
  Timeline& timeline_;
  const Hooks hooks_;
  const Capabilities capabilities_;
  RegionPool pool_;
  NameCache cache_;

  std::unordered_map<std::string, Entry*> outstanding_;  // requested, not answered
  std::vector<Entry*> unsent_;  // the part of outstanding_ that is not sent yet
  struct Join {
    Entry* entry = nullptr;  // the pending join, or null
    bool is_asked = false;   // the join was sent to rank 0, which will count it
    uint64_t count = 0;      // number of joins of this rank so far
  };
  Join join_;
  uint64_t next_tag_ = 1;                     // tag of the next negotiated operation
  std::deque<std::unique_ptr<Run>> waiting_;  // answered, but not launched
  std::vector<std::unique_ptr<Run>> runs_;
  int running_[2] = {0, 0};  // numbers of running operations: [0] negotiated, [1] of the plan
  PreparedPairs pairs_;
  // The part of outstanding_ that waits for running uses of pairs. It is requested from rank 0
  // when these have ended.
  std::vector<Entry*> behind_pairs_;
  uint64_t allocations_ = 0;
  std::string last_submitted_;

  PlanFollower plan_;
  // For each bucket of the plan: its Run while it does not run, else null.
  std::vector<std::unique_ptr<Run>> idle_runs_;
  std::vector<Entry*> over_;  // scratch
  // Entries that cannot complete, each with the departed rank that it needs.
  std::vector<std::pair<Entry*, int>> doomed_;
  // Set while Runs that need a departed rank have not ended: the time when this was first seen.
  std::optional<Clock::time_point> cancelled_since_;
  Clock::time_point next_deadline_ = Clock::time_point::max();
};

/// Returns the key under which a rank keeps an operation. For a send or receive the key contains
/// the peer.
std::string entry_key(const Request& request);

}  // namespace tutti
