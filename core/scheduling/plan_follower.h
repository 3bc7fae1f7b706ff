#pragma once

#include <optional>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/core/agreement/messages.h"
#include "tutti/core/scheduling/replay.h"

namespace tutti {

/// Decides which bucket of a plan (a recorded step) is launched next, and when the plan ends. Pure:
/// it launches and sends nothing.
///
///   none       --begin()-------------------------------> following
///   following  --this rank vetoes its next bucket------> vetoed
///   following, vetoed --a rank has left----------------> abandoned
///   following, vetoed, abandoned --a vetoed bucket is over--> collapsed
///   collapsed  --end(): nothing of the plan is under way----> none
///
/// following   Buckets are launched strictly in order. If another rank vetoes bucket N (refuses to
///             run it), this rank also vetoes N when N is its next bucket. Before N it still
///             launches every bucket that the other ranks need. A veto may arrive before the answer
///             of rank 0 that begins the plan. It is then kept until the plan begins.
/// vetoed      This rank has launched its next bucket with a veto, and launches no more buckets.
/// abandoned   A rank has left. The entries in the plan fail, and no rank vetoes any more. The plan
///             stays until the communicator ends.
/// collapsed   The vetoed bucket has ended. It is the same bucket on every rank. Its result is
///             discarded. The buckets that this rank launched after it, before it knew of the veto,
///             are discarded too; those that still run are cancelled.
class PlanFollower {
 public:
  enum class State : uint8_t { none, following, vetoed, abandoned, collapsed };
  enum class Next : uint8_t {
    nothing,
    launch,     // launch the next bucket, with data
    veto,       // veto the next bucket, because the plan does not fit
    reordered,  // veto the next bucket: for many steps the tensors had another order
    unused,     // veto the next bucket: the program now uses other tensors
  };
  static constexpr int kMostRunning = 8;     // number of buckets that may run at the same time
  static constexpr int kMostBesidePlan = 4;  // answers with other tensors that count as one step

  PlanFollower(int rank, int size) : rank_(rank), size_(size) {}

  State state() const { return state_; }
  bool has_plan() const { return state_ != State::none; }
  const Plan& plan() const { return replay_->plan(); }
  const Replay& replay() const { return *replay_; }

  /// Begins to follow a plan. Throws DamagedMessage if this rank already has a plan.
  void begin(Plan plan);
  void on_veto(const Veto& veto);
  /// Offers a submitted entry to the plan. Returns true if the plan takes it.
  bool offer(Entry* entry) {
    return has_plan() && state_ != State::collapsed && replay_->offer(entry);
  }
  /// Counts an answer with allreduces that are not in the plan.
  void answered_beside() { ++beside_; }

  /// Decides what to do now. `running` is the number of buckets in progress. `arrived()` returns
  /// whether the input of the next bucket is in host memory. It is called only if all entries of
  /// that bucket are submitted.
  template <class Arrived>
  Next next(Clock::time_point now, int running, Arrived&& arrived) {
    wake_at_ = Clock::time_point::max();
    if (state_ != State::following) return Next::nothing;
    if (running < kMostRunning) {
      if (must_veto()) return Next::veto;
      if (const auto why = outlived(); why != Next::nothing) return why;
      if (replay_->ready() && arrived()) return Next::launch;
    }
    return is_stuck(now) ? Next::veto : Next::nothing;
  }
  /// Returns whether next() would launch or veto now, apart from vetoes after a waiting time.
  template <class Arrived>
  bool can_go_on(int running, Arrived&& arrived) const {
    return state_ == State::following && running < kMostRunning &&
           (must_veto() || (replay_->ready() && arrived()));
  }
  /// Returns the time at which next() may give another answer although nothing arrives. Valid after
  /// next() returned `nothing`.
  Clock::time_point wake_at() const { return wake_at_; }
  /// Returns the time at which a waiting thread should check whether the plan still fits.
  Clock::time_point look_at() const {
    const bool looks =
        state_ == State::following && replay_->holds_waiting() && replay_->lacks_some();
    return looks ? next_look_ : Clock::time_point::max();
  }
  /// Returns whether this rank must announce a veto of the next bucket. It must if it knows of no
  /// other rank's veto for that bucket.
  bool is_first_to_veto() const { return !veto_seen_ || *veto_seen_ > replay_->next_sequence(); }

  /// Called when this rank has launched the next bucket with data.
  void launched() {
    beside_ = 0;
    replay_->launched();
  }
  /// Called when this rank has launched the next bucket with a veto. `why` is the reason.
  void vetoed_here(Next why);
  /// Called when a vetoed bucket has ended. Returns false if an earlier bucket is known to be
  /// vetoed.
  bool collapse(uint64_t sequence);
  /// Called when a rank has left. Removes and returns the entries that wait in the plan.
  std::vector<Entry*> abandon();
  /// Called when no bucket of a collapsed plan runs any more. Forgets the plan and returns its
  /// entries.
  std::vector<Entry*> end();
  /// Called when an entry has ended. The plan no longer holds it.
  void release(Entry* entry) {
    if (has_plan()) replay_->release(entry);
  }
  /// Forgets the plan.
  void drop();

  /// Returns whether entries wait in the plan for their bucket.
  bool holds_waiting() const { return has_plan() && replay_->holds_waiting(); }
  /// This rank's progress, for its farewell: the id of a plan, and the first bucket of the plan
  /// that this rank has not launched or that was vetoed.
  struct Place {
    uint32_t plan = 0;
    uint64_t sequence = 0;
  };
  Place place() const;
  /// Returns the number of steps for which rank 0 keeps a plan whose tensors now have another order
  /// or are not used.
  int patience() const { return patience_; }
  int beside() const { return beside_; }

 private:
  bool must_veto() const { return replay_->deviates() || !is_first_to_veto(); }
  Next outlived() const;
  bool is_stuck(Clock::time_point now);

  const int rank_, size_;
  State state_ = State::none;
  std::optional<Replay> replay_;
  std::optional<uint64_t> veto_seen_;  // sequence number of the bucket that another rank vetoes
  std::optional<Veto> early_veto_;     // veto of a plan that has not begun on this rank yet
  uint64_t collapsed_from_ = 0;        // results from this sequence number on are discarded
  Place last_;                         // this rank's progress in the previous plan
  // Number of answers with allreduces since the last bucket of the plan was launched.
  int beside_ = 0;
  int patience_ = 32;
  // next_look_ is the time to check again for signs that the plan does not fit. stuck_due_ is the
  // time from which on a waiting bucket counts as stuck.
  Clock::time_point next_look_, stuck_due_;
  Clock::time_point wake_at_ = Clock::time_point::max();
};

}  // namespace tutti
