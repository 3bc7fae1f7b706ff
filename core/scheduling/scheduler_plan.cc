// This file launches the buckets of a plan (a recorded step), vetoes them, and requests the plan's
// tensors again after a veto. PlanFollower decides when.

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/agreement/checks.h"
#include "tutti/core/scheduling/scheduler.h"

namespace tutti {

void Scheduler::begin_plan(Plan plan, Clock::time_point now) {
  plan_.begin(std::move(plan));
  const auto id = plan_.plan().id;
  timeline_.instant("engine", fmt::format("plan {} locked", id), now);
  ++statistics_.plans_locked;
  idle_runs_.clear();
  idle_runs_.resize(plan_.plan().buckets.size());
  auto message = begin_message(MessageType::plan_joined);
  message.put(id);
  hooks_.send(0, message.bytes());
  // Rank 0 will not answer outstanding requests for tensors of the plan, so they move into the
  // plan.
  for (Entry* entry : outstanding_in_order()) {
    const auto key = entry_key(entry->request);
    if (!plan_.plan().index.contains(key)) continue;
    outstanding_.erase(key);
    std::erase(unsent_, entry);
    plan_.offer(entry);
  }
  if (join_.entry != nullptr) {
    join_.is_asked = false;  // rank 0 began the plan before it read the join
    veto(now);
  }
}

void Scheduler::on_veto(const Veto& veto) { plan_.on_veto(veto); }

bool Scheduler::follow_plan(Clock::time_point now) {
  using Next = PlanFollower::Next;
  bool moved = false;
  while (true) {
    const auto next = plan_.next(now, running_[1], [this] { return next_arrived(); });
    if (next == Next::nothing) break;
    moved = true;
    if (next == Next::launch) {
      launch_bucket(now);
      continue;
    }
    if (next == Next::reordered)
      hooks_.log(fmt::format("plan {}: tensors become ready in another order; a new plan follows",
                             plan_.plan().id));
    if (next == Next::unused)
      hooks_.log(fmt::format("plan {}: {} answers came and none of its tensors; a new plan follows",
                             plan_.plan().id, plan_.beside()));
    veto(now, next);
  }
  next_deadline_ = std::min(next_deadline_, plan_.wake_at());
  return moved;
}

void Scheduler::launch_bucket(Clock::time_point now) {
  const auto& replay = plan_.replay();
  const uint64_t sequence = replay.next_sequence();
  auto run = std::move(idle_runs_[replay.next_index()]);
  if (run) {
    replay.entries_of_next(run->entries());
    if (!run->can_repeat()) run.reset();
  }
  if (run) {
    run->repeat(plan_.plan().tag(sequence));
  } else {
    std::vector<Entry*> entries;
    replay.entries_of_next(entries);
    run = plan_run(std::move(entries));
    ++allocations_;
  }
  run->set_origin({Origin::Kind::planned, sequence});
  // All slices of an entry are launched in one step. The entry has ended when all slices are final.
  // The entry's first slice sets `left`.
  for (size_t i = 0; i < run->slices().size(); ++i) {
    Entry* entry = run->entries()[i];
    if (run->slices()[i].begin == 0) entry->left = entry->request.signature.shape.count();
  }
  plan_.launched();
  ++statistics_.buckets;
  ++statistics_.replayed_buckets;
  start(std::move(run), 0, now);
}

// Makes the Run of the next bucket. If `entries` is empty, this rank takes part only to veto.
std::unique_ptr<Run> Scheduler::plan_run(std::vector<Entry*> entries) {
  const auto tag = plan_.plan().tag(plan_.replay().next_sequence());
  const auto& bucket = plan_.replay().next_bucket();
  if (bucket.key.kind != CollectiveKind::allreduce) {
    std::vector<Response> answers;
    const auto& tensors = plan_.plan().tensors;
    for (const auto& slice : bucket.slices)
      answers.push_back(tensors[static_cast<size_t>(slice.index)].answer());
    const auto& given = tensors[static_cast<size_t>(bucket.slices[0].index)].given;
    return Run::moved(tag, pool_, answers, given, std::move(entries), rank_, size_);
  }
  return Run::bucket(tag, pool_, bucket, std::move(entries), size_, device_of(bucket.key));
}

// Returns whether all elements that the next bucket needs have arrived from the device.
bool Scheduler::next_arrived() {
  // For kinds other than allreduce, an operation is submitted only when its whole tensor has
  // arrived.
  if (plan_.replay().next_bucket().key.kind != CollectiveKind::allreduce) return true;
  plan_.replay().entries_of_next(over_);
  return arrived(over_, plan_.replay().next_bucket().slices);
}

void Scheduler::veto(Clock::time_point now, PlanFollower::Next why) {
  const auto& plan = plan_.plan();
  const uint64_t sequence = plan_.replay().next_sequence();
  const bool is_told = !plan_.is_first_to_veto();
  plan_.vetoed_here(why);
  if (!is_told) {
    // If only the order changed, or if the program no longer uses the plan, no tensor is missing.
    const bool reordered = why != PlanFollower::Next::veto;
    auto message = begin_message(MessageType::plan_failed);
    const auto missing =
        join_.entry != nullptr || reordered ? std::vector<std::string>{} : plan_.replay().missing();
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

// Called when bucket `sequence` was vetoed. The results of this bucket and of all later buckets are
// discarded.
void Scheduler::collapse(uint64_t sequence, Clock::time_point now) {
  if (!plan_.collapse(sequence)) return;
  ++statistics_.vetoed_buckets;
  timeline_.instant("engine", fmt::format("plan {} vetoed", plan_.plan().id), now);
  for (auto& run : runs_) {
    if (!run->is_planned() || run->origin().number <= sequence ||
        run->state() == RunState::cancelled)
      continue;
    run->cancel();
  }
  backend_.transport()->discard(plan_.plan().tag(sequence + 1), plan_.plan().last_tag());
}

// Called when no operation of the plan runs any more. Requests the plan's tensors from rank 0.
// Slices that are already final stay final, because they are the same on every rank.
void Scheduler::renegotiate() {
  auto message = begin_message(MessageType::plan_left);
  message.put(plan_.plan().id);
  hooks_.send(0, message.bytes());
  const auto entries = plan_.end();
  // Final tensors of a group are not requested again. The remaining members form a smaller group.
  // Its size must be the same on every rank, because rank 0 waits for all members.
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
  idle_runs_.clear();
  flush();
  ask_to_join();
}

}  // namespace tutti
