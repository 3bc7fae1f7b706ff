// This file handles ranks that leave. If such a rank has done its part of an operation, the
// operation completes on all ranks. Operations that still need the rank fail. The file also handles
// operations that fail because a rank is gone.

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/scheduling/scheduler.h"

namespace tutti {

Farewell Scheduler::farewell() {
  // A rank that joins during a plan normally sends the join after it has left the plan. This rank
  // closes instead, so it sends the join now, unless the plan still has operations of this rank.
  const auto is_in_plan = [](const auto& run) {
    return run->is_planned() && !run->entries().empty();
  };
  if (join_.entry != nullptr && !join_.is_asked && !plan_.holds_waiting() &&
      std::ranges::none_of(runs_, is_in_plan))
    send_join();
  Farewell farewell;
  farewell.next_tag = waiting_.empty() ? next_tag_ : waiting_.front()->tag();
  const auto [plan, sequence] = plan_.place();
  farewell.plan = plan;
  farewell.next_sequence = sequence;
  for (const auto& run : runs_)
    if (!run->is_in_pair())
      (run->is_planned() ? farewell.unfinished_buckets : farewell.unfinished)
          .push_back(static_cast<int64_t>(run->is_planned() ? run->origin().number : run->tag()));
  for (const auto* pair : pairs_.in_order()) {
    farewell.pairs.push_back(pair->id());
    farewell.pairs.push_back(static_cast<int64_t>(pair->finished()));
  }
  farewell.joins = join_.count;
  // Rank 0 does not count a join that was not sent to it. It also does not count a join that
  // follows a request which rank 0 may ask this rank to send again.
  const auto may_be_asked_again = [](const auto& one) { return one.second->sent_id >= 0; };
  if (join_.entry != nullptr &&
      (!join_.is_asked || std::ranges::any_of(outstanding_, may_be_asked_again)))
    --farewell.joins;
  return farewell;
}

const Departure* Scheduler::departure_that_dooms(const Run& run) const {
  const auto& collective = run.collective();
  for (const auto& departure : peers_.departures()) {
    if (is_pair(collective.kind) && collective.root != departure.rank) continue;
    const auto& farewell = departure.farewell;
    const auto plan = static_cast<uint32_t>(run.tag() >> Plan::kSequenceBits);
    const auto& [kind, number, pair] = run.origin();
    if (kind == Origin::Kind::pair) {
      if (!pair->peer_finished(number, farewell)) return &departure;
      continue;
    }
    if (run.is_planned() ? !farewell.has_finished_bucket(plan, number)
                         : !farewell.has_finished(run.tag()))
      return &departure;
  }
  return nullptr;
}

const Error* Scheduler::departure_that_ends(const Entry& entry) const {
  const auto error_of = [](const Departure* departure) {
    return departure == nullptr ? nullptr : &departure->error;
  };
  const auto& signature = entry.request.signature;
  if (entry.request.join) return error_of(departure_that_ends_join(join_.count + 1));
  // If rank 0 left, every operation that rank 0 would have to answer fails; see
  // end_what_is_doomed().
  return error_of(is_pair(signature.kind) ? peers_.departure_of(static_cast<int>(signature.root))
                                          : peers_.first());
}

const Departure* Scheduler::departure_that_ends_join(uint64_t number) const {
  const auto found = std::ranges::find_if(peers_.departures(), [&](const Departure& departure) {
    return departure.rank == 0 || departure.farewell.joins < number;
  });
  return found == peers_.departures().end() ? nullptr : &*found;
}

bool Scheduler::is_doomed(const Entry* entry) const {
  return std::ranges::find(doomed_, entry, &std::pair<Entry*, int>::first) != doomed_.end();
}

// An entry may be in several buckets, but is listed as doomed only once.
void Scheduler::doom(std::span<Entry* const> entries, int rank) {
  for (Entry* entry : entries)
    if (!is_doomed(entry)) doomed_.emplace_back(entry, rank);
}

// Runs at each step after a rank has left, because rank 0 may still answer earlier requests.
bool Scheduler::end_what_is_doomed() {
  for (const auto& run : runs_) {
    if (run->is_given_up()) continue;
    if (const auto* departure = departure_that_dooms(*run)) run->doom(departure->rank);
  }
  std::erase_if(waiting_, [this](const std::unique_ptr<Run>& run) {
    const auto* departure = departure_that_dooms(*run);
    if (departure != nullptr) doom(run->entries(), departure->rank);
    return departure != nullptr;
  });
  // A bucket that this rank has not launched cannot finish on any rank.
  doom(plan_.abandon(), peers_.first()->rank);
  if (join_.entry != nullptr) {
    if (const auto* departure = departure_that_ends_join(join_.count))
      doom({&join_.entry, 1}, departure->rank);
    else
      ask_to_join();  // this rank does not have to leave a plan first any more
  }
  for (const auto& departure : peers_.departures()) {
    if (departure.rank != 0) continue;
    // If another rank left, rank 0 answers requests that need that rank with an error. If rank 0
    // itself left, it answers nothing more, so all requests fail.
    doom(outstanding_in_order(), 0);
  }
  // A running Run may still use the memory of its entries.
  const auto is_running = [this](const Entry* entry) {
    return std::ranges::any_of(
        runs_, [&](const auto& run) { return std::ranges::count(run->entries(), entry) > 0; });
  };
  const auto over = std::partition(doomed_.begin(), doomed_.end(),
                                   [&](const auto& doomed) { return is_running(doomed.first); });
  const std::vector<std::pair<Entry*, int>> ended(over, doomed_.end());
  doomed_.erase(over, doomed_.end());
  for (const auto& [entry, rank] : ended) {
    if (const auto asked = outstanding_.find(entry_key(entry->request));
        asked != outstanding_.end() && asked->second == entry)
      outstanding_.erase(asked);
    std::erase(unsent_, entry);
    std::erase(behind_pairs_, entry);
    if (join_.entry == entry) {
      join_.entry = nullptr;
      --join_.count;  // the join did not take place
    }
    plan_.release(entry);
    finish(entry, &peers_.departure_of(rank)->error);
  }
  return !ended.empty();
}

// Gloo and NCCL cannot cancel started operations. If a Run that needs a departed rank has not ended
// after kGrace, this rank ends the communicator.
bool Scheduler::break_what_cannot_be_cancelled(Clock::time_point now) {
  constexpr auto kGrace = std::chrono::milliseconds(250);
  const auto stuck = std::ranges::find_if(runs_, [this](const auto& run) {
    return run->state() == RunState::doomed ||
           (run->state() == RunState::cancelled && departure_that_dooms(*run) != nullptr);
  });
  if (stuck == runs_.end()) {
    cancelled_since_.reset();
    return false;
  }
  if (!cancelled_since_) cancelled_since_ = now;
  const auto due = *cancelled_since_ + kGrace;
  if (now < due) {
    next_deadline_ = std::min(next_deadline_, due);
    return false;
  }
  hooks_.broken(fmt::format("{} cannot be taken back", describe(**stuck)));
  return true;
}

bool Scheduler::is_unexpected(const Run& failed) const {
  const bool is_refused =
      failed.is_in_pair() && failed.origin().in->is_left_from(failed.origin().number);
  return !failed.is_given_up() && !is_refused;
}

// Returns whether to wait for the cause of a failure. A peer that ends because of a third rank
// frees its memory and refuses messages immediately. This rank may notice that before it has read
// the fault message that names the third rank.
bool Scheduler::awaits_cause(Run& failed, Clock::time_point now) {
  constexpr auto kGrace = std::chrono::seconds(1);
  const bool needs_who_left = peers_.first() != nullptr && !is_pair(failed.collective().kind);
  if (needs_who_left || failed.operation()->failure() != nullptr) return false;
  const auto due = failed.wait_for_cause(now) + kGrace;
  if (now >= due) return false;
  next_deadline_ = std::min(next_deadline_, due);
  return true;
}

}  // namespace tutti
