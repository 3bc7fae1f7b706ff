// Replaying a plan: buckets start when their tensors are there, and what the plan does not foresee
// ends it.
//
//   no replay_ ---plan in the answers---> following ---veto()---> ending_ --+
//        ^                                    |                             | a vetoed bucket
//        |                                    +--another rank's veto comes--+ is over
//        |                                        before this rank's own    v
//        +------renegotiate(): nothing of the plan is under way------- collapsed_
//
// following   Buckets are launched strictly in order. A veto of another rank for bucket N, which
//             this rank has heard of (veto_seen_), makes it veto too when N is its next one: until
//             then all that N's peers need of this rank is still launched.
// ending_     This rank has launched its next bucket with a veto and launches no more of the plan.
//             Or a rank has left: then there is no veto, what the plan holds fails, and the plan
//             stays in this state until the communicator ends (scheduler_farewell.cc).
// collapsed_  The bucket that was vetoed is over, on every rank the same one: it and what was
//             launched behind it never happened. What is still under way is cancelled.
// early_veto_ A veto for a plan that this rank has not heard of: the answer that begins the plan is
//             still on its way from rank 0. begin_plan() makes it veto_seen_.

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/agreement/checks.h"
#include "tutti/core/scheduling/scheduler.h"

namespace tutti {

void Scheduler::begin_plan(Plan plan, Clock::time_point now) {
  need_of_message(!replay_, "a plan begins while another one runs");
  timeline_.instant("engine", fmt::format("plan {} locked", plan.id), now);
  ++statistics_.plans_locked;
  auto message = begin_message(MessageType::plan_joined);
  message.put(plan.id);
  for (const auto& tensor : plan.tensors) check_planned(tensor, size_);
  replay_.emplace(std::move(plan), rank_, size_);
  idle_runs_.clear();
  idle_runs_.resize(replay_->plan().buckets.size());
  beside_plan_ = 0;
  ending_ = false;
  veto_seen_.reset();
  collapsed_.reset();
  if (early_veto_ && early_veto_->plan == replay_->plan().id) veto_seen_ = early_veto_->sequence;
  early_veto_.reset();
  hooks_.send(0, message.bytes());
  // What was asked for already, and will not be answered any more, belongs to the plan.
  for (Entry* entry : outstanding_in_order()) {
    const auto key = entry_key(entry->request);
    if (!replay_->plan().index.contains(key)) continue;
    outstanding_.erase(key);
    std::erase(unsent_, entry);
    replay_->offer(entry);
  }
  if (join_.entry != nullptr) {
    join_.is_asked = false;  // rank 0 had begun the plan before it read that
    veto(now);
  }
}

void Scheduler::on_veto(const Veto& veto) {
  if (!replay_ || replay_->plan().id < veto.plan) {
    if (!early_veto_ || early_veto_->plan != veto.plan || early_veto_->sequence > veto.sequence)
      early_veto_ = veto;
    return;
  }
  if (replay_->plan().id != veto.plan) return;
  veto_seen_ = std::min(veto_seen_.value_or(veto.sequence), veto.sequence);
}

bool Scheduler::launch_replay(Clock::time_point now) {
  bool moved = false;
  while (replay_ && !ending_ && !collapsed_ && running_[1] < kMostRunning) {
    if (must_veto()) {
      veto(now);
      return true;
    }
    if (replay_->next_index() == 0 && rank_ == 0 && replay_->inverted_steps() >= patience_) {
      // The order changed for good: a new plan learns it. Should it go on changing, more rarely.
      hooks_.log(fmt::format("plan {}: tensors become ready in another order; a new plan follows",
                             replay_->plan().id));
      patience_ *= 2;
      veto(now, true);
      return true;
    }
    if (rank_ == 0 && replay_->next_index() == 0 && !replay_->holds_waiting() &&
        beside_plan_ >= kMostBesidePlan * patience_) {
      // The program has gone on to other tensors, which are negotiated as long as this plan is
      // kept.
      hooks_.log(fmt::format("plan {}: {} answers came and none of its tensors; a new plan follows",
                             replay_->plan().id, beside_plan_));
      patience_ *= 2;
      beside_plan_ = 0;
      veto(now, true);
      return true;
    }
    if (!replay_->ready() || !next_arrived()) break;
    beside_plan_ = 0;
    const uint64_t sequence = replay_->next_sequence();
    auto run = std::move(idle_runs_[replay_->next_index()]);
    if (run) {
      replay_->entries_of_next(run->entries());
      if (!run->can_repeat()) run.reset();
    }
    if (run) {
      run->repeat(replay_->plan().tag(sequence));
    } else {
      std::vector<Entry*> entries;
      replay_->entries_of_next(entries);
      run = plan_run(std::move(entries));
      ++allocations_;
    }
    run->set_origin({Origin::Kind::planned, sequence});
    // An entry's last slice is launched in this step; it is over when all slices are final.
    for (size_t i = 0; i < run->slices().size(); ++i) {
      Entry* entry = run->entries()[i];
      if (run->slices()[i].begin == 0) entry->left = entry->request.signature.shape.count();
    }
    replay_->launched();
    ++statistics_.buckets;
    ++statistics_.replayed_buckets;
    start(std::move(run), 0, now);
    moved = true;
  }
  if (replay_ && !ending_ && !collapsed_ && plan_is_stuck(now)) {
    veto(now);
    moved = true;
  }
  return moved;
}

// The next bucket; without entries: this rank takes part in it with a veto alone.
std::unique_ptr<Run> Scheduler::plan_run(std::vector<Entry*> entries) {
  const auto tag = replay_->plan().tag(replay_->next_sequence());
  const auto& bucket = replay_->next_bucket();
  if (bucket.key.kind != CollectiveKind::allreduce) {
    std::vector<Response> answers;
    const auto& tensors = replay_->plan().tensors;
    for (const auto& slice : bucket.slices)
      answers.push_back(tensors[static_cast<size_t>(slice.index)].answer());
    const auto& given = tensors[static_cast<size_t>(bucket.slices[0].index)].given;
    return Run::moved(tag, pool_, answers, given, std::move(entries), rank_, size_);
  }
  return Run::bucket(tag, pool_, bucket, std::move(entries), size_, device_of(bucket.key));
}

// A bucket whose tensors come from a device is launched when its part of them has come.
bool Scheduler::next_arrived() {
  // What is no allreduce is submitted when all of it has come.
  if (replay_->next_bucket().key.kind != CollectiveKind::allreduce) return true;
  replay_->entries_of_next(over_);
  return arrived(over_, replay_->next_bucket().slices);
}

// Evidence that the next bucket will not fill: a thread of this rank waits for a tensor behind it,
// or a tensor waits behind it for long.
bool Scheduler::plan_is_stuck(Clock::time_point now) {
  constexpr auto kGrace = std::chrono::milliseconds(1);
  constexpr auto kPatience = std::chrono::seconds(1);
  if (!replay_->holds_waiting() || !replay_->lacks_some()) return false;
  // Looked for once in a while: there may be many.
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
  next_deadline_ = std::min(next_deadline_, std::max(stuck_due_, next_look_));
  return false;
}

void Scheduler::veto(Clock::time_point now, bool reordered) {
  const auto& plan = replay_->plan();
  const uint64_t sequence = replay_->next_sequence();
  const bool mine = !veto_seen_ || *veto_seen_ > sequence;
  ending_ = true;
  if (mine) {
    auto message = begin_message(MessageType::plan_failed);
    const auto missing =
        join_.entry != nullptr || reordered ? std::vector<std::string>{} : replay_->missing();
    message.put(plan.id).put(static_cast<uint8_t>(reordered));
    message.put(static_cast<uint16_t>(missing.size()));
    for (const auto& name : missing) message.text(name);
    hooks_.send(0, message.bytes());
    auto veto = begin_message(MessageType::veto);
    veto.put(plan.id).put(sequence);
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) hooks_.send(peer, veto.bytes());
  }
  auto run = plan_run({});
  run->set_origin({Origin::Kind::planned, sequence});
  start(std::move(run), 1, now);
}

// Bucket `sequence` was vetoed: it and everything after it never happened.
void Scheduler::collapse(uint64_t sequence, Clock::time_point now) {
  if (collapsed_ && *collapsed_ <= sequence) return;
  collapsed_ = sequence;
  ++statistics_.vetoed_buckets;
  timeline_.instant("engine", fmt::format("plan {} vetoed", replay_->plan().id), now);
  for (auto& run : runs_) {
    if (!run->is_planned() || run->origin().number <= sequence ||
        run->state() == RunState::cancelled)
      continue;
    run->cancel();
  }
  backend_.transport()->discard(replay_->plan().tag(sequence + 1), replay_->plan().last_tag());
}

// Once nothing of the plan is on its way any more, its tensors are asked for in the ordinary way.
// The slices that are final stay so: every rank has the same ones.
void Scheduler::renegotiate() {
  auto message = begin_message(MessageType::plan_left);
  message.put(replay_->plan().id);
  hooks_.send(0, message.bytes());
  last_plan_ = replay_->plan().id;
  last_plan_end_ = *collapsed_;
  const auto entries = replay_->take_all();
  // Tensors of a group that are final are not asked for again: what is left of it is a group too,
  // of as many on every rank, for rank 0 waits until it has heard of all members.
  std::unordered_map<std::string, int32_t> left;
  for (const Entry* entry : entries) ++left[entry->request.signature.group];
  for (const auto& [key, entry] : outstanding_) ++left[entry->request.signature.group];
  for (Entry* entry : entries) {
    auto& signature = entry->request.signature;
    signature.begin = entry->final_end;
    if (!signature.group.empty()) signature.group_size = left[signature.group];
    entry->plan_id = 0;
    request(entry);
  }
  replay_.reset();
  idle_runs_.clear();
  collapsed_.reset();
  flush();
  ask_to_join();
}

}  // namespace tutti
