// Sends and receives of prepared pairs: two ranks that repeat a send without asking rank 0. They
// are launched as soon as they are submitted, in any order relative to other operations. The two
// ranks match them by the index of the use, which both count.
//
// If a rank must do something else under the name, it leaves the pair. It announces to its peer the
// first use that it will not run in the pair. It discards the data that the peer has sent for that
// use, and asks rank 0 instead. The peer's operation cannot have completed, so the peer cancels it
// and asks rank 0 too. Rank 0 then answers both.
//
// Rank 0 does not know of a running use. A join would be matched as if it came before that use. So
// would a receive from any rank that was submitted after a receive of the same name. Therefore this
// rank sends the join or that receive only after the use has ended. The peer may wait for
// that join or receive before it launches its part of the use. So this rank asks the peer to give
// up the use. If the peer has not launched it, the peer leaves the pair. This rank then cancels the
// use and asks rank 0 for it too.

#include "tutti/core/agreement/checks.h"
#include "tutti/core/scheduling/scheduler.h"

namespace tutti {

// Makes the pair that the answer to `entry` announces.
void Scheduler::prepare_pair(const Response& response, const Entry& entry) {
  auto& pair = pairs_.make(entry_key(entry.request), response.pair, entry.request.signature);
  ++allocations_;
  // This rank leaves the pair immediately in two cases. If it has joined, it does not send or
  // receive any more. If it also receives from any rank under this name, that receive must get the
  // message.
  if (join_.entry != nullptr ||
      (!pair.sends() && outstanding_.contains(pair_entry_key(entry.request.name, kFromAnyRank))))
    leave_pair(pair);
}

// Leaves each pair now, or when its running use has ended. Returns true if all pairs are left now.
bool Scheduler::leave_pairs(std::span<PreparedPair* const> pairs) {
  bool all = true;
  for (auto* pair : pairs) {
    if (pair->state() != PreparedPair::State::running) {
      leave_pair(*pair);
      continue;
    }
    all = false;
    if (!pair->recall()) continue;
    auto message = begin_message(MessageType::pair_recalled);
    message.put(pair->id()).put(pair->next_use() - 1);
    hooks_.send(pair->peer(), message.bytes());
  }
  return all;
}

// Returns true if the entry was launched in a pair. Also returns true if the entry must wait,
// because a running pair may still deliver the message that it would receive.
bool Scheduler::launch_in_pair(Entry* entry, Clock::time_point now) {
  if (pairs_.empty()) return false;
  if (entry->request.signature.root == kFromAnyRank) {
    // Rank 0 matches this receive, so the sends under its name must also be requested from rank 0.
    if (leave_pairs(pairs_.that_bring(entry->request.name))) return false;
    entry->sent_id = -1;
    outstanding_.emplace(entry_key(entry->request), entry);
    behind_pairs_.push_back(entry);
    return true;
  }
  auto* pair = pairs_.find(entry_key(entry->request));
  if (pair == nullptr) return false;
  if (!pair->is_left_from(pair->next_use()) && !pair->fits(entry->request.signature))
    leave_pair(*pair);
  if (pair->is_left_from(pair->next_use())) {
    end_pair(*pair, pair->next_use());
    return false;
  }
  const uint64_t use = pair->launch();
  auto run = std::move(pair->idle);
  if (run) {
    run->entries() = {entry};
    run->repeat(pair_tag(pair->id(), use));
  } else {
    Response response;
    response.signature = entry->request.signature;
    response.rows = {pair->sends() ? rank_ : pair->peer(), pair->sends() ? pair->peer() : rank_};
    run = Run::moved(pair_tag(pair->id(), use), pool_, {&response, 1}, {}, {entry}, rank_, size_);
    ++allocations_;
  }
  run->set_origin({Origin::Kind::pair, use, pair});
  ++statistics_.buckets;
  ++statistics_.replayed_buckets;
  start(std::move(run), 0, now);
  return true;
}

void Scheduler::tell_pair_left(int peer, int64_t id, uint64_t use) {
  auto message = begin_message(MessageType::pair_left);
  message.put(id).put(use);
  hooks_.send(peer, message.bytes());
}

// Leaves the pair from the next use on. Data that the peer has sent for that use is discarded.
void Scheduler::leave_pair(PreparedPair& pair) {
  if (!pair.leave()) return;
  tell_pair_left(pair.peer(), pair.id(), pair.next_use());
  backend_.transport()->discard(pair_tag(pair.id(), pair.next_use()), last_pair_tag(pair.id()));
}

// Called when no use of the pair runs on this rank any more. If the peer left the pair first, a use
// may still run on the peer. This rank's farewell will not list the pair. So this rank now sends
// the number of uses that it has finished.
void Scheduler::end_pair(const PreparedPair& pair, uint64_t finished) {
  if (pair.is_left_by_peer()) tell_pair_left(pair.peer(), pair.id(), finished);
  pairs_.erase(pair);
}

void Scheduler::on_pair_left(int from, WireReader reader) {
  const auto id = reader.get<int64_t>();
  const auto use = reader.get<uint64_t>();
  const auto* pair = pairs_.on_left(from, id, use);
  if (pair == nullptr) return;
  for (const auto& run : runs_)
    if (run->origin().in == pair) run->operation()->cancel();
}

void Scheduler::on_pair_recalled(int from, WireReader reader) {
  const auto id = reader.get<int64_t>();
  const auto use = reader.get<uint64_t>();
  if (!pairs_.on_recall(from, id, use)) return;
  tell_pair_left(from, id, use);
  backend_.transport()->discard(pair_tag(id, use), last_pair_tag(id));
}

// Returns true if the use has ended and its operation is finished or requested again.
bool Scheduler::finish_in_pair(std::unique_ptr<Run>& run, OperationState state,
                               Clock::time_point now) {
  auto& pair = *run->origin().in;
  pair.finish();
  if (state == OperationState::done) {
    const bool repeats = run->can_repeat();
    run->end();
    finish_run(*run, now);
    if (join_.entry != nullptr) leave_pair(pair);
    if (repeats) pair.idle = std::move(run);
    return true;
  }
  const uint64_t use = run->origin().number;
  if (!pair.is_left_from(use) || run->state() == RunState::doomed) return false;
  Entry* entry = run->entries()[0];
  run.reset();
  end_pair(pair, use);
  request(entry);
  flush();
  return true;
}

// Requests the operations that waited for running uses of pairs, if those uses have ended.
void Scheduler::ask_behind_pairs() {
  std::erase_if(behind_pairs_, [this](Entry* entry) {
    if (!leave_pairs(pairs_.that_bring(entry->request.name))) return false;
    unsent_.push_back(entry);
    return true;
  });
  flush();
  ask_to_join();
}

}  // namespace tutti
