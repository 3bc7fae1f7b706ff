#include "tutti/core/agreement/negotiator.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/text.h"
#include "tutti/core/agreement/agreement.h"
#include "tutti/core/agreement/checks.h"

namespace tutti {

namespace {

std::string pair_key(const std::string& name, int one, int other) {
  return fmt::format("{}\n{}-{}", name, std::min(one, other), std::max(one, other));
}

// Returns the key of a request. The key of a send or receive contains its two ranks, because other
// ranks may use the same name.
std::string table_key(int rank, const Request& request) {
  if (!is_pair(request.signature.kind)) return request.name;
  return pair_key(request.name, rank, request.signature.root);
}

// Returns whether the operation can run although some ranks have joined. A rank that has joined
// adds zeros to a sum. It has no data for other kinds, and it would miss the update of an
// optimizer's arrays.
bool can_miss_ranks(const Signature& signature) {
  return traits(signature.kind).joined_give_zeros && !signature.updates;
}

Error joined_without(const std::string& name, const Signature& signature,
                     const std::vector<int>& joined) {
  const auto ranks = format_rank_set(joined);
  const auto text =
      signature.updates
          ? fmt::format(
                "\"{}\": the optimizer's step that is fused with this allreduce cannot run while "
                "{} has joined (is out of data), which would miss the update; give every rank the "
                "same number of steps. Nothing was changed.",
                name, ranks)
          : fmt::format(
                "\"{}\": {} cannot run while {} has joined (is out of data); only "
                "allreduce can. Nothing was changed.",
                name, to_string(signature.kind), ranks);
  return Error(ErrorCode::mismatch, text).with_rank(joined.front()).with_tensor(name);
}

}  // namespace

void Negotiator::add(int rank, Request request, Clock::time_point now) {
  last_asked_ = now;
  if (request.join) {
    if (never_all_join()) return;  // the join fails when the rank learns who left
    need_of_message(!joined_[static_cast<size_t>(rank)], "it joins twice");
    joined_[static_cast<size_t>(rank)] = true;
    ++joined_count_;
    last_joined_ = rank;
    release_complete();
    return;
  }
  const auto& signature = request.signature;
  if (signature.kind == CollectiveKind::recv && signature.root == kFromAnyRank)
    return add_from_any(rank, std::move(request), now);
  if (signature.kind == CollectiveKind::send) {
    const auto found = table_.find(table_key(rank, request));
    const auto any = std::ranges::find_if(from_any_, [&](const FromAny& asked) {
      return asked.rank == signature.root && asked.request.name == request.name;
    });
    if (found == table_.end() && any != from_any_.end()) {
      FromAny asked = std::move(*any);
      from_any_.erase(any);
      asked.request.signature.root = rank;
      put(rank, std::move(request), now, true);
      return settle(put(asked.rank, std::move(asked.request), now, true));
    }
  }
  settle(put(rank, std::move(request), now, false));
}

// Matches a receive from any rank with the oldest send that has arrived, or lets it wait for a
// send.
void Negotiator::add_from_any(int rank, Request request, Clock::time_point now) {
  need_of_message(std::ranges::none_of(from_any_,
                                       [&](const FromAny& asked) {
                                         return asked.rank == rank &&
                                                asked.request.name == request.name;
                                       }),
                  "it asks twice for one operation");
  int sender = -1;
  uint64_t oldest = next_order_;
  bool may_come = false;
  for (int from = 0; from < size_; ++from) {
    if (from == rank) continue;
    const auto place = static_cast<size_t>(from);
    const auto found = table_.find(pair_key(request.name, from, rank));
    may_come |= !gone_[place] && !joined_[place];
    if (found == table_.end() || found->second.order >= oldest ||
        !found->second.requests[place].has_value() ||
        found->second.requests[place]->signature.kind != CollectiveKind::send)
      continue;
    sender = from;
    oldest = found->second.order;
  }
  if (sender >= 0) {
    request.signature.root = sender;
    return settle(put(rank, std::move(request), now, true));
  }
  from_any_.push_back({rank, std::move(request), now, next_order_++});
  if (!may_come) release_from_any();
}

std::string Negotiator::put(int rank, Request request, Clock::time_point now, bool from_any) {
  auto key = table_key(rank, request);
  auto [found, is_new] = table_.try_emplace(key);
  auto& pending = found->second;
  if (is_new) {
    pending.requests.resize(static_cast<size_t>(size_));
    pending.since = now;
    pending.order = next_order_++;
    pending.is_pair = is_pair(request.signature.kind);
  }
  pending.from_any |= from_any;
  auto& place = pending.requests[static_cast<size_t>(rank)];
  // A rank refuses a second use of a pending name, so it never requests it twice.
  need_of_message(!place.has_value(), "it asks twice for one operation");
  place = std::move(request);
  ++pending.count;
  return key;
}

void Negotiator::settle(const std::string& key) {
  const auto& pending = table_.at(key);
  if (complete(pending) || hopeless(pending)) finish(key);
}

void Negotiator::leave(int rank, const Error& error, uint64_t joins) {
  // Every rank concludes from the number of joins in the farewell whether the leaving rank has
  // joined. Rank 0 does the same, although it may have read fewer join requests of that rank.
  const bool has_joined = !never_all_join() && joins > rounds_of_joins_;
  if (joined_[static_cast<size_t>(rank)] != has_joined) {
    joined_[static_cast<size_t>(rank)] = has_joined;
    joined_count_ += has_joined ? 1 : -1;
    if (has_joined) last_joined_ = rank;
  }
  gone_[static_cast<size_t>(rank)] = error;
  if (!left_) left_ = error;
  std::erase_if(from_any_, [&](const FromAny& asked) { return asked.rank == rank; });
  // From now on each operation is answered separately, and no group becomes complete. Group members
  // that all ranks had requested fail with the error of the rank that left.
  for (auto& [name, group] : groups_)
    for (auto& member : group.members) {
      if (!is_pair(member.signature.kind) && !member.error) member.error = error;
      ready_.push_back(std::move(member));
    }
  groups_.clear();
  // The joins of the other ranks fail. Those ranks take part in operations again and may request
  // another join.
  for (size_t other = 0; never_all_join() && other < joined_.size(); ++other)
    if (joined_[other] && !gone_[other]) {
      joined_[other] = false;
      --joined_count_;
    }
  std::vector<std::pair<uint64_t, std::string>> keys;
  for (const auto& [key, pending] : table_)
    if (hopeless(pending)) keys.emplace_back(pending.order, key);
  std::sort(keys.begin(), keys.end());
  for (const auto& [order, key] : keys) finish(key);
  release_complete();
}

// Fails each receive from any rank to which no remaining rank can still send.
void Negotiator::release_from_any() {
  std::erase_if(from_any_, [&](const FromAny& asked) {
    std::vector<int> joined;
    for (int from = 0; from < size_; ++from) {
      const auto place = static_cast<size_t>(from);
      if (from == asked.rank || gone_[place]) continue;
      if (!joined_[place]) return false;
      joined.push_back(from);
    }
    Response response;
    response.name = asked.request.name;
    response.signature = asked.request.signature;
    response.rows = {asked.rank, asked.rank};
    response.error =
        joined.empty() ? left_ : joined_without(response.name, response.signature, joined);
    ready_.push_back(std::move(response));
    return true;
  });
}

// Returns the error if the operation can never complete because a rank left. An operation of all
// ranks cannot complete if any rank left, because the remaining ranks stop requesting it. This
// holds even if the rank that left had joined or had requested it. The error names the first rank
// that left. A send or receive cannot complete if its peer left without joining or requesting it.
const Error* Negotiator::hopeless(const Pending& pending) const {
  if (!left_) return nullptr;
  const auto first = std::find_if(pending.requests.begin(), pending.requests.end(),
                                  [](const auto& request) { return request.has_value(); });
  for (size_t rank = 0; rank < gone_.size(); ++rank) {
    if (!gone_[rank]) continue;
    if (!pending.is_pair) return &*left_;
    if (joined_[rank] || pending.requests[rank]) continue;
    if ((*first)->signature.root == static_cast<int>(rank)) return &*gone_[rank];
  }
  return nullptr;
}

// Returns whether a rank left without joining.
bool Negotiator::never_all_join() const {
  for (size_t rank = 0; rank < joined_.size(); ++rank)
    if (gone_[rank] && !joined_[rank]) return true;
  return false;
}

bool Negotiator::awaits_joins() const {
  for (size_t rank = 0; rank < joined_.size(); ++rank)
    if (joined_[rank] && !gone_[rank]) return true;
  return false;
}

bool Negotiator::complete(const Pending& pending) const {
  if (pending.is_pair) {
    if (pending.count == 2) return true;
    const auto first = std::find_if(pending.requests.begin(), pending.requests.end(),
                                    [](const auto& request) { return request.has_value(); });
    // If the peer has joined, its request never comes. The answer is then an error.
    return joined_[static_cast<size_t>((*first)->signature.root)];
  }
  if (pending.count + joined_count_ < size_) return false;
  for (size_t rank = 0; rank < joined_.size(); ++rank)
    if (!pending.requests[rank] && !joined_[rank]) return false;
  return true;
}

// Answers the operations that are complete now, for example because a rank has joined. The oldest
// name is answered first, so that the same requests always get the same answers.
void Negotiator::release_complete() {
  std::vector<std::pair<uint64_t, std::string>> keys;
  for (const auto& [key, pending] : table_)
    if (complete(pending)) keys.emplace_back(pending.order, key);
  std::sort(keys.begin(), keys.end());
  for (const auto& [order, key] : keys) finish(key);
  release_from_any();
  if (joined_count_ < size_) return;
  Response response;
  response.all_joined = true;
  response.rows = {last_joined_};
  ++rounds_of_joins_;
  ready_.push_back(std::move(response));
  std::fill(joined_.begin(), joined_.end(), false);
  joined_count_ = 0;
}

void Negotiator::finish(const std::string& key) {
  const auto found = table_.find(key);
  const auto& pending = found->second;
  const auto first = std::find_if(pending.requests.begin(), pending.requests.end(),
                                  [](const auto& request) { return request.has_value(); });
  const std::string name = (*first)->name;
  Response response = answer(name, pending);
  const std::string group = (*first)->signature.group;
  const int group_size = (*first)->signature.group_size;
  const bool one_group =
      std::all_of(pending.requests.begin(), pending.requests.end(), [&](const auto& request) {
        return !request ||
               (request->signature.group == group && request->signature.group_size == group_size);
      });
  table_.erase(found);
  // Ranks that disagree about the group itself get their error now, because their group never
  // becomes complete.
  if (group.empty() || !one_group || left_) {
    ready_.push_back(std::move(response));
    return;
  }
  auto& members = groups_[group].members;
  members.push_back(std::move(response));
  if (static_cast<int>(members.size()) < group_size) return;
  const auto bad = std::find_if(members.begin(), members.end(),
                                [](const Response& member) { return member.error.has_value(); });
  if (bad != members.end()) {
    const Error error = *bad->error;
    for (auto& member : members) member.error = error;
  }
  std::move(members.begin(), members.end(), std::back_inserter(ready_));
  groups_.erase(group);
}

Response Negotiator::answer(const std::string& name, const Pending& pending) const {
  std::vector<std::pair<int, const Request*>> voices;
  Response response;
  response.name = name;
  response.after_wait = true;
  for (int rank = 0; rank < size_; ++rank) {
    const auto& request = pending.requests[static_cast<size_t>(rank)];
    if (request) {
      voices.emplace_back(rank, &*request);
      response.after_wait &= request->after_wait;
    } else if (!pending.is_pair) {
      response.joined.push_back(rank);
    }
  }
  const Request& first = *voices.front().second;
  response.signature = first.signature;
  const auto kind = first.signature.kind;
  if (pending.is_pair) {
    // The answer is in the form of an answer to a send, with rows = {from, to}. If only one rank
    // requested the operation, both entries are that rank. Its peer may use the name later, before
    // it reads this answer. The peer must then see that the answer is not for it.
    const int one = voices[0].first, other = voices.size() < 2 ? one : first.signature.root;
    response.rows = kind == CollectiveKind::send ? std::vector<int64_t>{one, other}
                                                 : std::vector<int64_t>{other, one};
    response.signature.kind = CollectiveKind::send;
    // The answer's root is kFromAnyRank if the receive accepted any rank. If there is only a send,
    // the root is still its receiver.
    if (pending.from_any && (voices.size() == 2 || kind == CollectiveKind::recv))
      response.signature.root = kFromAnyRank;
    if (voices.size() < 2 && !hopeless(pending)) {
      response.error = joined_without(name, first.signature, {first.signature.root});
      return response;
    }
  }
  if (const auto* why = hopeless(pending)) {
    response.error = *why;
  } else if (!response.joined.empty() && !can_miss_ranks(first.signature)) {
    // Without the data of the joined ranks, the other ranks' inputs cannot be combined.
    std::vector<int> joined(response.joined.begin(), response.joined.end());
    response.error = joined_without(name, first.signature, joined);
  } else {
    response.error = find_disagreement(name, voices, size_);
  }
  if (response.error) return response;
  const auto rows_of = [](const Request& request) {
    return request.signature.shape.rank() == 0 ? 1 : request.signature.shape[0];
  };
  if (is_described_by_root(kind)) {
    for (const auto& [rank, request] : voices)
      if (rank == request->signature.root) {
        response.signature = request->signature;
        response.rows = request->rows;
      }
  } else if (deals_parts(kind)) {
    response.rows = first.rows;
  } else if (joins_parts(kind)) {
    for (const auto& [rank, request] : voices) response.rows.push_back(rows_of(*request));
  } else if (exchanges_parts(kind)) {
    for (const auto& [rank, request] : voices)
      response.rows.insert(response.rows.end(), request->rows.begin(), request->rows.end());
  }
  return response;
}

std::vector<Response> Negotiator::take_ready() {
  std::stable_sort(ready_.begin(), ready_.end(), [](const Response& a, const Response& b) {
    return a.signature.priority > b.signature.priority;
  });
  return std::exchange(ready_, {});
}

void Negotiator::forget(const std::string& name) {
  table_.erase(name);
  for (auto group = groups_.begin(); group != groups_.end();) {
    std::erase_if(group->second.members,
                  [&](const Response& member) { return member.name == name; });
    group = group->second.members.empty() ? groups_.erase(group) : std::next(group);
  }
}

std::vector<Negotiator::Waiting> Negotiator::waiting() const {
  struct Asked {
    Waiting waiting;
    uint64_t order;  // sorts requests that began at the same time
  };
  std::vector<Asked> list;
  for (const auto& [key, pending] : table_) {
    const auto first = std::find_if(pending.requests.begin(), pending.requests.end(),
                                    [](const auto& request) { return request.has_value(); });
    Waiting waiting{(*first)->name, (*first)->signature.kind, pending.since, {}, {}};
    for (int rank = 0; rank < size_; ++rank) {
      const auto index = static_cast<size_t>(rank);
      if (pending.requests[index])
        waiting.present.push_back(rank);
      else if (pending.is_pair ? rank == (*first)->signature.root : !joined_[index])
        waiting.missing.push_back(rank);
    }
    list.push_back({std::move(waiting), pending.order});
  }
  for (const auto& asked : from_any_) {
    Waiting waiting{asked.request.name, CollectiveKind::recv, asked.since, {asked.rank}, {}};
    for (int rank = 0; rank < size_; ++rank)
      if (rank != asked.rank && !joined_[static_cast<size_t>(rank)])
        waiting.missing.push_back(rank);
    list.push_back({std::move(waiting), asked.order});
  }
  if (awaits_joins()) {
    Waiting waiting{"join", CollectiveKind::barrier, last_asked_, {}, {}};
    for (int rank = 0; rank < size_; ++rank)
      (joined_[static_cast<size_t>(rank)] ? waiting.present : waiting.missing).push_back(rank);
    list.push_back({std::move(waiting), next_order_});
  }
  std::ranges::sort(list, {},
                    [](const Asked& asked) { return std::pair(asked.waiting.since, asked.order); });
  std::vector<Waiting> in_order;
  for (auto& asked : list) in_order.push_back(std::move(asked.waiting));
  return in_order;
}

}  // namespace tutti
