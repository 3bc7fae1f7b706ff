#pragma once

#include <optional>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/core/agreement/messages.h"
#include "tutti/core/scheduling/replay.h"

namespace tutti {

/// Decides what of a plan comes next and when the plan ends. Pure: it launches and sends nothing.
///
///   none       --begin()-------------------------------> following
///   following  --this rank vetoes its next bucket------> vetoed
///   following, vetoed --a rank has left----------------> abandoned
///   following, vetoed, abandoned --a vetoed bucket is over--> collapsed
///   collapsed  --end(): nothing of the plan is under way----> none
///
/// following   Buckets are launched strictly in order. If another rank vetoes bucket N, this rank
///             vetoes it too when N is its next one. Before that it still launches every bucket
///             that the other ranks need of it. A veto may arrive before the answer of rank 0 that
///             begins the plan; it is kept until then.
/// vetoed      This rank has launched its next bucket with a veto, and launches no more.
/// abandoned   A rank has left. The entries in the plan fail, and nobody vetoes. The plan stays
///             until the communicator ends.
/// collapsed   The vetoed bucket is over. It is the same bucket on every rank. Its result is
///             discarded, and so are those of the buckets that were launched after it, before this
///             rank knew of the veto. The ones that still run are cancelled.
class PlanFollower {
 public:
  enum class State : uint8_t { none, following, vetoed, abandoned, collapsed };
  enum class Next : uint8_t {
    nothing,
    launch,     // launch the next bucket, with data
    veto,       // launch it with a veto: the plan does not fit
    reordered,  // veto it: the tensors have long become ready in another order
    unused,     // veto it: the program has gone on to other tensors
  };
  static constexpr int kMostRunning = 8;     // buckets at once
  static constexpr int kMostBesidePlan = 4;  // answers per step of patience()

  PlanFollower(int rank, int size) : rank_(rank), size_(size) {}

  State state() const { return state_; }
  bool has_plan() const { return state_ != State::none; }
  const Plan& plan() const { return replay_->plan(); }
  const Replay& replay() const { return *replay_; }

  /// Throws DamagedMessage if there is a plan.
  void begin(Plan plan);
  void on_veto(const Veto& veto);
  /// Returns true if the plan takes the entry.
  bool offer(Entry* entry) {
    return has_plan() && state_ != State::collapsed && replay_->offer(entry);
  }
  /// Counts an answer that launches allreduces beside the plan.
  void answered_beside() { ++beside_; }

  /// Decides what to do now, while `running` buckets are under way. `arrived()` returns whether the
  /// input of the next bucket is in host memory. It is called only if all entries of that bucket
  /// are here.
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
  /// Returns whether next() would launch or veto now, apart from vetoes that come with time.
  template <class Arrived>
  bool can_go_on(int running, Arrived&& arrived) const {
    return state_ == State::following && running < kMostRunning &&
           (must_veto() || (replay_->ready() && arrived()));
  }
  /// Valid after next() returned `nothing`: returns when its answer may change although nothing
  /// arrives.
  Clock::time_point wake_at() const { return wake_at_; }
  /// Returns when a waiting thread should check whether the plan fits.
  Clock::time_point look_at() const {
    const bool looks =
        state_ == State::following && replay_->holds_waiting() && replay_->lacks_some();
    return looks ? next_look_ : Clock::time_point::max();
  }
  /// Returns whether this rank must announce a veto of the next bucket, because it knows of no
  /// other rank's veto for it.
  bool is_first_to_veto() const { return !veto_seen_ || *veto_seen_ > replay_->next_sequence(); }

  /// Called when the next bucket was launched with data.
  void launched() {
    beside_ = 0;
    replay_->launched();
  }
  /// Called when the next bucket was launched with a veto, for this reason.
  void vetoed_here(Next why);
  /// Called when a vetoed bucket is over. Returns false if an earlier bucket is known to be vetoed.
  bool collapse(uint64_t sequence);
  /// Called when a rank has left. Takes out and returns the entries that wait in the plan.
  std::vector<Entry*> abandon();
  /// Called when nothing of a collapsed plan is under way. Forgets the plan and returns its
  /// entries.
  std::vector<Entry*> end();
  /// Called when an entry is over. The plan no longer holds it.
  void release(Entry* entry) {
    if (has_plan()) replay_->release(entry);
  }
  /// Forgets the plan.
  void drop();

  /// Returns whether entries wait in the plan for their bucket.
  bool holds_waiting() const { return has_plan() && replay_->holds_waiting(); }
  /// How far this rank got, for its farewell: a plan, and its first bucket that was not launched
  /// here or never happened.
  struct Place {
    uint32_t plan = 0;
    uint64_t sequence = 0;
  };
  Place place() const;
  /// Rank 0 replaces the plan after this many steps in another order, or without a tensor of the
  /// plan.
  int patience() const { return patience_; }
  int beside() const { return beside_; }

 private:
  bool must_veto() const { return replay_->deviates() || !is_first_to_veto(); }
  Next outlived() const;
  bool is_stuck(Clock::time_point now);

  const int rank_, size_;
  State state_ = State::none;
  std::optional<Replay> replay_;
  std::optional<uint64_t> veto_seen_;  // another rank vetoes this bucket
  std::optional<Veto> early_veto_;     // veto of a plan that has not begun here yet
  uint64_t collapsed_from_ = 0;        // buckets from here on are void
  Place last_;                         // in the previous plan
  // Answers with allreduces since the plan's last bucket was launched.
  int beside_ = 0;
  int patience_ = 32;
  // When to look again for signs that the plan does not fit, and when a waiting bucket counts
  // as stuck.
  Clock::time_point next_look_, stuck_due_;
  Clock::time_point wake_at_ = Clock::time_point::max();
};

}  // namespace tutti
