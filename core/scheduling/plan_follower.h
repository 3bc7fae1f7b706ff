#pragma once

#include <optional>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/core/agreement/messages.h"
#include "tutti/core/scheduling/replay.h"

namespace tutti {

/// Says what of a plan comes next, and when it ends. Pure: it launches nothing and tells nobody.
///
///   none       --begin()-------------------------------> following
///   following  --this rank vetoes its next bucket------> vetoed
///   following, vetoed --a rank has left----------------> abandoned
///   following, vetoed, abandoned --a vetoed bucket is over--> collapsed
///   collapsed  --end(): nothing of the plan is under way----> none
///
/// following   Buckets are launched strictly in order. A veto of another rank for bucket N makes
///             this rank veto too when N is its next one: until then all that N's peers need of
///             this rank is still launched. A veto for a plan that this rank has not heard of yet
///             is kept: the answer that begins the plan is still on its way from rank 0.
/// vetoed      This rank has launched its next bucket with a veto, and launches no more.
/// abandoned   What the plan holds fails, and nobody vetoes: the plan stays until the communicator
///             ends.
/// collapsed   The bucket that was vetoed is over, on every rank the same one: it and what was
///             launched behind it never happened. What is still under way is cancelled.
class PlanFollower {
 public:
  enum class State : uint8_t { none, following, vetoed, abandoned, collapsed };
  enum class Next : uint8_t {
    nothing,
    launch,     // the next bucket, with data
    veto,       // it: the plan does not fit
    reordered,  // veto it: the tensors have become ready in another order for long
    unused,     // veto it: the program has gone on to other tensors
  };
  static constexpr int kMostRunning = 8;     // buckets
  static constexpr int kMostBesidePlan = 4;  // answers, for each step of patience()

  PlanFollower(int rank, int size) : rank_(rank), size_(size) {}

  State state() const { return state_; }
  bool has_plan() const { return state_ != State::none; }
  const Plan& plan() const { return replay_->plan(); }
  const Replay& replay() const { return *replay_; }

  /// Throws DamagedMessage if there is a plan.
  void begin(Plan plan);
  void on_veto(const Veto& veto);
  /// True: the plan takes it.
  bool offer(Entry* entry) {
    return has_plan() && state_ != State::collapsed && replay_->offer(entry);
  }
  /// An answer has launched allreduces beside the plan.
  void answered_beside() { ++beside_; }

  /// Says what to do now, while so many buckets are under way. `arrived()` says whether the input
  /// of the next bucket is in host memory; it is asked if all of its entries are here.
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
  /// Whether next() says anything else than `nothing`, but for what only the time brings.
  template <class Arrived>
  bool can_go_on(int running, Arrived&& arrived) const {
    return state_ == State::following && running < kMostRunning &&
           (must_veto() || (replay_->ready() && arrived()));
  }
  /// Says when next(), which said `nothing`, may say more although nothing has come.
  Clock::time_point wake_at() const { return wake_at_; }
  /// When a thread that waits should look whether the plan fits.
  Clock::time_point look_at() const {
    const bool looks =
        state_ == State::following && replay_->holds_waiting() && replay_->lacks_some();
    return looks ? next_look_ : Clock::time_point::max();
  }
  /// Whether this rank knows of no veto of another rank for the next bucket, so that it is the one
  /// to tell.
  bool is_first_to_veto() const { return !veto_seen_ || *veto_seen_ > replay_->next_sequence(); }

  /// The next bucket was launched, with data.
  void launched() {
    beside_ = 0;
    replay_->launched();
  }
  /// The next bucket was launched with a veto, for this reason.
  void vetoed_here(Next why);
  /// A vetoed bucket is over. False: it came behind one that was known to be vetoed.
  bool collapse(uint64_t sequence);
  /// A rank has left. Returns what waits in the plan, which holds it no more.
  std::vector<Entry*> abandon();
  /// Nothing of a collapsed plan is under way. Returns all that it holds.
  std::vector<Entry*> end();
  /// An entry is over; the plan holds it no more, if it did.
  void release(Entry* entry) {
    if (has_plan()) replay_->release(entry);
  }
  /// Forgets the plan.
  void drop();

  /// Whether entries wait in the plan for their bucket.
  bool holds_waiting() const { return has_plan() && replay_->holds_waiting(); }
  /// Tells how far this rank went, for its farewell: a plan, and the first bucket that it has not
  /// launched or that never happened.
  struct Place {
    uint32_t plan = 0;
    uint64_t sequence = 0;
  };
  Place place() const;
  /// A new plan is made after so many steps in another order, or without a tensor of the plan.
  int patience() const { return patience_; }
  int beside() const { return beside_; }

 private:
  bool must_veto() const { return replay_->deviates() || !is_first_to_veto(); }
  Next outlived() const;
  bool is_stuck(Clock::time_point now);

  const int rank_, size_;
  State state_ = State::none;
  std::optional<Replay> replay_;
  std::optional<uint64_t> veto_seen_;  // another rank vetoes this sequence
  std::optional<Veto> early_veto_;     // of a plan that this rank has not heard of yet
  uint64_t collapsed_from_ = 0;        // buckets from here on are void
  Place last_;                         // of the plan before
  // Answers with allreduces since the plan's last bucket was launched.
  int beside_ = 0;
  int patience_ = 32;
  // Evidence that the plan does not fit: when to look again, and when there will be some.
  Clock::time_point next_look_, stuck_due_;
  Clock::time_point wake_at_ = Clock::time_point::max();
};

}  // namespace tutti
