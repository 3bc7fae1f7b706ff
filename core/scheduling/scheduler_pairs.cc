// Sends and receives of prepared pairs: launched as soon as they are submitted, in no order with
// anything else, and matched by a number that both ranks count.
//
// The rank that is to do something else under that name leaves the pair: it tells its peer from
// which use on, throws away what the peer has sent for that one, and asks rank 0. The peer, whose
// operation cannot have ended, takes it back and asks, too; so both get one answer.
//
// Rank 0 does not know of a use that runs. So a join, and a receive from any rank behind a receive
// of its name, wait until the use is over: otherwise rank 0 would match them as if they came first.
// The peer may launch its part only after them, so this rank asks for the use back. A peer that has
// not launched it leaves the pair; then this rank takes the use back and asks rank 0 for it, too.

#include <algorithm>

#include "tutti/core/agreement/checks.h"
#include "tutti/core/scheduling/scheduler.h"

namespace tutti {

// An answer has made this rank, whose entry it is, one of a pair.
void Scheduler::prepare_pair(const Response& response, const Entry& entry) {
  auto& pair = pairs_.make(entry_key(entry.request), response.pair, entry.request.signature);
  ++allocations_;
  // This rank leaves the pair at once if it has joined, because then it neither sends nor receives;
  // and if it receives from any rank under this name, because that receive must get the message.
  if (join_.entry != nullptr ||
      (!pair.sends() && outstanding_.contains(pair_entry_key(entry.request.name, kFromAnyRank))))
    leave_pair(pair);
}

// Leaves these pairs, each now or when the use that runs is over. True: all are left now.
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

// True: it is launched, or is asked for when no pair runs that brings what it would get.
bool Scheduler::launch_in_pair(Entry* entry, Clock::time_point now) {
  if (pairs_.empty()) return false;
  if (entry->request.signature.root == kFromAnyRank) {
    // It is matched by rank 0, so what is sent under its name must be asked for.
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

// From the next use on. What the peer has sent for it goes nowhere.
void Scheduler::leave_pair(PreparedPair& pair) {
  if (!pair.leave()) return;
  tell_pair_left(pair.peer(), pair.id(), pair.next_use());
  backend_.transport()->discard(pair_tag(pair.id(), pair.next_use()), last_pair_tag(pair.id()));
}

// No use of it runs here any more. If the peer left the pair first, a use may still run there, and
// this rank's farewell no longer has the pair; so this rank says how many uses it has finished.
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

// True: it is over, and what it had to do is done, or asked for.
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

// Asks for what had to wait until uses of pairs are over, if they are now.
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
