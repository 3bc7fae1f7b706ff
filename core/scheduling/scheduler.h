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

/// The queues of Launch. Each has one order on all ranks.
inline constexpr int kNegotiatedQueue = 0;
inline constexpr int kReplayedQueue = 1;
inline constexpr int kBlockingQueue = 2;

/// One rank's side of the scheduling. It asks the coordinator on rank 0 for submitted operations,
/// launches what the coordinator answers or the plan contains, advances it, and gives the engine
/// what is over. Only the holder of the engine's token calls it.
class Scheduler {
 public:
  struct Hooks {
    std::function<void(int rank, std::span<const std::byte>)> send;     // sends a control message
    std::function<void(std::span<Entry* const>, const Error*)> finish;  // entries are over
    std::function<void()> on_its_way;                // streams may wait for Works that are not done
    std::function<void(const std::string&)> broken;  // an operation failed
    std::function<void(const std::string&)> log;
  };
  /// `peers` knows which ranks have left and what they finished. Operations that a rank left
  /// unfinished fail as soon as nothing touches their memory any more. All others go on.
  Scheduler(const Options& options, Backend& backend, const Peers& peers, int rank, int size,
            Statistics& statistics, Timeline& timeline, Hooks hooks);

  void submit(Entry* entry, Clock::time_point now);
  /// Called when this rank is out of data. It takes part in later answers without data.
  void join(Entry* entry, Clock::time_point now);
  /// Sends the requests made since the last call.
  void flush();

  void on_answers(WireReader reader, Clock::time_point now);
  void on_resend(WireReader reader);
  void on_veto(const Veto& veto);
  void on_pair_left(int from, WireReader reader);
  void on_pair_recalled(int from, WireReader reader);

  /// Launches and advances operations. Returns true if something moved.
  bool advance(Clock::time_point now);
  /// Returns whether advance() can go on although nothing arrives. A caller that stops calling
  /// advance() must ask this.
  bool can_go_on();
  /// Returns when advance() must be called although nothing arrives.
  Clock::time_point next_deadline() const { return next_deadline_; }

  /// Forgets everything and ends the running operations. The engine finishes the entries.
  void drop();
  /// Returns how far this rank got, which it sends to its peers before it closes.
  Farewell farewell();
  /// Returns the error of a departure because of which a newly submitted operation can never
  /// complete, or null if it may. A collective needs all ranks. A send or a receive needs only its
  /// peer. A join needs the ranks that have not joined as often.
  const Error* departure_that_ends(const Entry& entry) const;

  /// Returns whether this rank has neither a pending operation nor a pending join.
  bool idle() const {
    return runs_.empty() && outstanding_.empty() && waiting_.empty() && !plan_.holds_waiting() &&
           join_.entry == nullptr;
  }
  /// Returns whether the next advance() ends operations that a departure dooms.
  bool has_doomed() const { return !doomed_.empty(); }
  /// Returns how many bytes the program must submit before anything can be launched, if tensors
  /// wait for others of their bucket. 0: any submission matters.
  int64_t bytes_awaited() const {
    const bool awaits = plan_.holds_waiting() && plan_.state() == PlanFollower::State::following;
    return awaits && outstanding_.empty() ? plan_.replay().missing_bytes() : 0;
  }
  uint32_t plan_id() const { return plan_.has_plan() ? plan_.plan().id : 0; }
  /// Returns when a waiting thread should check whether the plan fits.
  Clock::time_point next_look() const { return plan_.look_at(); }
  RankStatus status() const;
  /// Returns the name of an operation that has not started yet, or an empty name.
  std::string first_pending() const;
  /// Returns whether a thread of this rank waits for an operation of this name.
  bool is_awaited(std::string_view name) const;
  /// Returns whether this rank has done its part of the oldest operation and other ranks have not
  /// arrived. It is also true if nothing runs.
  bool lacks_ranks() const { return runs_.empty() || runs_.front()->operation()->lacks_ranks(); }
  /// The running operations, for reports.
  const std::vector<std::unique_ptr<Run>>& runs() const { return runs_; }
  /// "bucket 7 (\"fc1.weight\" and 3 more)"
  static std::string describe(const Run& run);
  uint64_t allocations() const { return pool_.allocations() + allocations_; }

 private:
  static constexpr int kMostRunning = 8;  // negotiated
  void finish(Entry* entry, const Error* error) { hooks_.finish({&entry, 1}, error); }
  /// Asks rank 0 for the join if this rank joins and has not asked yet. Does nothing while an
  /// operation must be asked for first.
  void ask_to_join();
  void send_join();
  /// Returns the departure because of which this rank's join of that number can never complete, or
  /// null if it may.
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
  /// Returns the operations that were asked for and not answered, in the order of their submission.
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

  std::unordered_map<std::string, Entry*> outstanding_;  // asked, not answered
  std::vector<Entry*> unsent_;  // those of outstanding_ that are not sent yet
  struct Join {
    Entry* entry = nullptr;  // the pending one, or null
    bool is_asked = false;   // rank 0 will count it
    uint64_t count = 0;      // number of joins so far
  };
  Join join_;
  uint64_t next_tag_ = 1;                     // of the next negotiated operation
  std::deque<std::unique_ptr<Run>> waiting_;  // answered, not launched
  std::vector<std::unique_ptr<Run>> runs_;
  int running_[2] = {0, 0};  // number of operations: negotiated, of the plan
  PreparedPairs pairs_;
  std::vector<Entry*> behind_pairs_;  // outstanding; asked for when running uses of pairs are over
  uint64_t allocations_ = 0;
  std::string last_submitted_;

  PlanFollower plan_;
  std::vector<std::unique_ptr<Run>> idle_runs_;  // per bucket of the plan, while it does not run
  std::vector<Entry*> over_;                     // scratch
  std::vector<std::pair<Entry*, int>> doomed_;   // can never complete, because this rank left
  // The time since which doomed runs are cancelled but not over.
  std::optional<Clock::time_point> cancelled_since_;
  Clock::time_point next_deadline_ = Clock::time_point::max();
};

/// Returns the key under which a rank keeps an operation. The key of a send or receive contains the
/// peer.
std::string entry_key(const Request& request);

}  // namespace tutti
