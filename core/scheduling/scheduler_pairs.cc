// Sends and receives of prepared pairs: launched as soon as they are submitted, in no order with
// anything else, and matched by a number that both ranks count.
//
// The rank that is to do something else under that name leaves the pair: it tells its peer from
// which use on, throws away what the peer has sent for that one, and asks rank 0. The peer, whose
// operation cannot have ended, takes it back and asks, too; so both get one answer.

#include <algorithm>

#include "tutti/core/agreement/checks.h"
#include "tutti/core/scheduling/scheduler.h"

namespace tutti {

// An answer has made this rank, whose entry it is, one of a pair.
void Scheduler::prepare_pair(const Response& response, const Entry& entry) {
  const auto& signature = entry.request.signature;
  auto key = entry_key(entry.request);
  auto& pair = pairs_[key];
  need_of_message(pair.id < 0, "it makes a pair of two that are one");
  pair.key = std::move(key);
  pair.id = response.pair;
  pair.peer = signature.root;
  pair.sends = signature.kind == CollectiveKind::send;
  pair.dtype = signature.dtype;
  pair.count = signature.shape.count();
  if (const auto early = early_left_.find(pair.id); early != early_left_.end()) {
    pair.over_from = early->second;
    pair.left_by_peer = early->second;
    early_left_.erase(early);
  }
  ++allocations_;
  // This rank leaves the pair at once if it has joined, because then it neither sends nor receives;
  // and if it receives from any rank under this name, because that receive must get the message.
  if (join_.entry != nullptr ||
      (!pair.sends && outstanding_.contains(pair_entry_key(entry.request.name, kFromAnyRank))))
    leave_pair(pair);
}

std::vector<PreparedPair*> Scheduler::pairs_in_order() {
  std::vector<PreparedPair*> pairs;
  for (auto& [key, pair] : pairs_) pairs.push_back(&pair);
  std::ranges::sort(pairs, {}, &PreparedPair::id);
  return pairs;
}

// A receive from any rank is matched by rank 0, so what is sent under its name must be asked for.
void Scheduler::leave_pairs_that_bring(const std::string& name) {
  for (auto* pair : pairs_in_order())
    if (!pair->sends && pair->key == pair_entry_key(name, pair->peer)) leave_pair(*pair);
}

// False: it must be asked for.
bool Scheduler::launch_in_pair(Entry* entry, Clock::time_point now) {
  if (pairs_.empty()) return false;
  if (entry->request.signature.root == kFromAnyRank) {
    leave_pairs_that_bring(entry->request.name);
    return false;
  }
  const auto found = pairs_.find(entry_key(entry->request));
  if (found == pairs_.end()) return false;
  auto& pair = found->second;
  if (pair.next_use < pair.over_from && !pair.fits(entry->request.signature)) leave_pair(pair);
  if (pair.next_use >= pair.over_from) {
    end_pair(pair, pair.next_use);
    return false;
  }
  const uint64_t use = pair.next_use++;
  auto run = std::move(pair.idle);
  if (run) {
    run->entries() = {entry};
    run->repeat(pair_tag(pair.id, use));
  } else {
    Response response;
    response.signature = entry->request.signature;
    response.rows = {pair.sends ? rank_ : pair.peer, pair.sends ? pair.peer : rank_};
    run = Run::moved(pair_tag(pair.id, use), pool_, {&response, 1}, {}, {entry}, rank_, size_);
    ++allocations_;
  }
  run->pair = &pair;
  run->sequence = use;
  pair.running = run.get();
  ++statistics_.buckets;
  ++statistics_.replayed_buckets;
  start(std::move(run), 0, now);
  return true;
}

void Scheduler::tell_pair_left(const PreparedPair& pair, uint64_t use) {
  auto message = begin_message(MessageType::pair_left);
  message.put(pair.id).put(use);
  hooks_.send(pair.peer, message.bytes());
}

// From the next use on. What the peer has sent for it goes nowhere.
void Scheduler::leave_pair(PreparedPair& pair) {
  if (pair.over_from <= pair.next_use) return;
  pair.over_from = pair.next_use;
  tell_pair_left(pair, pair.next_use);
  backend_.transport()->discard(pair_tag(pair.id, pair.next_use), last_pair_tag(pair.id));
}

// No use of it runs here any more. If the peer left the pair first, a use may still run there, and
// this rank's farewell no longer has the pair; so this rank says how many uses it has finished.
void Scheduler::end_pair(const PreparedPair& pair, uint64_t finished) {
  if (pair.left_by_peer) tell_pair_left(pair, finished);
  pairs_.erase(std::string(pair.key));
}

void Scheduler::on_pair_left(int from, WireReader reader) {
  const auto id = reader.get<int64_t>();
  const auto use = reader.get<uint64_t>();
  const auto found =
      std::ranges::find_if(pairs_, [&](const auto& item) { return item.second.id == id; });
  if (found == pairs_.end()) {
    // This rank has left it, too; or the answer that makes the pair is still on its way.
    if (id <= last_pair_) return;
    need_of_message(early_left_.size() < PairLearner::kMostNames, "it leaves pairs without end");
    early_left_.emplace(id, use);
    return;
  }
  auto& pair = found->second;
  need_of_message(pair.peer == from, "it leaves a pair that is not its own");
  pair.over_from = std::min(pair.over_from, use);
  pair.left_by_peer = use;
  if (pair.running != nullptr && pair.running->sequence >= use) pair.running->operation()->cancel();
}

// True: it is over, and what it had to do is done, or asked for.
bool Scheduler::finish_in_pair(std::unique_ptr<Run>& run, OperationState state,
                               Clock::time_point now) {
  auto& pair = *run->pair;
  pair.running = nullptr;
  if (state == OperationState::done) {
    const bool repeats = run->can_repeat();
    finish_run(*run, now);
    if (repeats) pair.idle = std::move(run);
    return true;
  }
  if (run->sequence < pair.over_from || run->doomed_by >= 0) return false;
  Entry* entry = run->entries()[0];
  const auto finished = run->sequence;
  run.reset();
  end_pair(pair, finished);
  request(entry);
  flush();
  return true;
}

}  // namespace tutti
