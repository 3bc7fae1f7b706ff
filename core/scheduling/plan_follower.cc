#include "tutti/core/scheduling/plan_follower.h"

#include <algorithm>

#include "tutti/base/check.h"
#include "tutti/core/agreement/checks.h"

namespace tutti {

void PlanFollower::begin(Plan plan) {
  need_of_message(!has_plan(), "a plan begins while another one runs");
  for (const auto& tensor : plan.tensors) check_planned(tensor, size_);
  replay_.emplace(std::move(plan), rank_, size_);
  state_ = State::following;
  beside_ = 0;
  veto_seen_.reset();
  if (early_veto_ && early_veto_->plan == this->plan().id) veto_seen_ = early_veto_->sequence;
  early_veto_.reset();
}

void PlanFollower::on_veto(const Veto& veto) {
  if (!has_plan() || plan().id < veto.plan) {
    if (!early_veto_ || early_veto_->plan != veto.plan || early_veto_->sequence > veto.sequence)
      early_veto_ = veto;
    return;
  }
  if (plan().id != veto.plan) return;
  veto_seen_ = std::min(veto_seen_.value_or(veto.sequence), veto.sequence);
}

// Returns why the plan should be replaced, or `nothing`. Only rank 0 decides this, and only between
// two steps.
PlanFollower::Next PlanFollower::outlived() const {
  if (rank_ != 0 || replay_->next_index() != 0) return Next::nothing;
  if (replay_->inverted_steps() >= patience_) return Next::reordered;
  const bool is_unused = !replay_->holds_waiting() && beside_ >= kMostBesidePlan * patience_;
  return is_unused ? Next::unused : Next::nothing;
}

// Returns whether there is evidence that the next bucket will never be complete: a thread of this
// rank waits for a tensor that waits in the plan, or a tensor has waited there for a long time.
bool PlanFollower::is_stuck(Clock::time_point now) {
  constexpr auto kGrace = std::chrono::milliseconds(1);
  constexpr auto kPatience = std::chrono::seconds(1);
  if (!replay_->holds_waiting() || !replay_->lacks_some()) return false;
  // Checks only from time to time, because there may be many entries.
  if (now >= next_look_) {
    stuck_due_ = Clock::time_point::max();
    const bool stuck = replay_->find_waiting([&](const Entry& entry) {
      stuck_due_ = std::min(stuck_due_, entry.submitted + kPatience);
      if (entry.work->waiters.load(std::memory_order_acquire) > 0)
        stuck_due_ =
            std::min(stuck_due_,
                     Clock::time_point{Clock::duration(entry.work->waiting_since.load())} + kGrace);
      return now >= stuck_due_;
    }) != nullptr;
    if (stuck) return true;
    next_look_ = now + kGrace;
  }
  wake_at_ = std::max(stuck_due_, next_look_);
  return false;
}

void PlanFollower::vetoed_here(Next why) {
  TUTTI_CHECK(state_ == State::following);
  state_ = State::vetoed;
  // If a program keeps changing its steps, new plans are learned less and less often.
  if (why == Next::reordered || why == Next::unused) patience_ *= 2;
}

bool PlanFollower::collapse(uint64_t sequence) {
  TUTTI_CHECK(has_plan());
  if (state_ == State::collapsed && collapsed_from_ <= sequence) return false;
  state_ = State::collapsed;
  collapsed_from_ = sequence;
  return true;
}

std::vector<Entry*> PlanFollower::abandon() {
  if (!has_plan()) return {};
  if (state_ != State::collapsed) state_ = State::abandoned;
  return replay_->take_waiting();
}

std::vector<Entry*> PlanFollower::end() {
  TUTTI_CHECK(state_ == State::collapsed);
  last_ = place();
  auto entries = replay_->take_all();
  drop();
  return entries;
}

void PlanFollower::drop() {
  replay_.reset();
  state_ = State::none;
}

PlanFollower::Place PlanFollower::place() const {
  if (!has_plan()) return last_;
  const auto next = replay_->next_sequence();
  return {plan().id, state_ == State::collapsed ? std::min(next, collapsed_from_) : next};
}

}  // namespace tutti
