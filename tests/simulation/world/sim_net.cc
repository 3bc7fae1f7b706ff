#include "tests/simulation/world/sim_net.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/simulation/world/sim_backend.h"

namespace tutti::simulation {

SimNet::SimNet(Events& events, int size, const SimTraits& traits)
    : events_(events),
      size_(size),
      traits_(traits),
      random_(traits.salt, 3),
      links_(place(size) * place(size)),
      ends_(place(size), nullptr),
      tickets_(place(size)),
      discarded_(place(size)),
      pair_calls_(place(size)) {
  for (auto& one : links_) one.bandwidth = traits.bandwidth;
}

SimNet::~SimNet() = default;

std::unique_ptr<SimBackend> SimNet::make_end(int rank) {
  auto end = std::make_unique<SimBackend>(*this, rank);
  ends_[place(rank)] = end.get();
  return end;
}

std::unique_ptr<Backend> SimNet::make_backend(int rank, const Context&, EndHooks hooks) {
  auto end = make_end(rank);
  end->on_wake = std::move(hooks.on_wake);
  end->on_start = std::move(hooks.on_start);
  end->on_post = std::move(hooks.on_post);
  return end;
}

void SimNet::begin_goodbye(int rank) { ends_[place(rank)]->transport()->goodbye(0); }

size_t SimNet::regions_left(int rank) const { return ends_[place(rank)]->regions(); }

// --- links --------------------------------------------------------------------------------------

std::optional<SimNet::Time> SimNet::arrival(int from, int to, size_t bytes) {
  auto& way = link(from, to);
  if (now() < way.half_open_until) {
    way.dropped = true;
    happens(Fault::Kind::half_open);
    return {};
  }
  if (way.more > 0) happens(Fault::Kind::delay);
  const bool is_near = traits_.far != 0 && !(from == 0 && to == traits_.far);
  const Micros latency = is_near ? (traits_.latency + 7) / 8 : traits_.latency;
  auto when = now() + micros(latency / 4 + way.more) + draw_delay(latency - latency / 4);
  if (way.bandwidth > 0) {
    if (way.bandwidth != traits_.bandwidth) happens(Fault::Kind::slow_link);
    way.free_at = std::max(way.free_at, now()) +
                  micros(static_cast<int64_t>(bytes + 16) * kSecond / way.bandwidth);
    when = std::max(when, way.free_at);
  }
  if (now() < way.clogged_until) {
    happens(Fault::Kind::clog);
    when = std::max(when, way.clogged_until + draw_delay(50));
  }
  way.last_of_all = std::max(way.last_of_all, when);
  return when;
}

// Control messages of one link keep their order.
std::optional<SimNet::Time> SimNet::control_arrival(int from, int to, size_t bytes) {
  auto when = arrival(from, to, bytes);
  if (!when) return {};
  auto& way = link(from, to);
  *when = way.last_arrival = std::max(*when, way.last_arrival);
  return when;
}

void SimNet::post(int from, int to, std::span<const std::byte> message) {
  if (link(from, to).ended) return;
  const auto when = control_arrival(from, to, message.size());
  if (!when) return;
  std::vector<std::byte> bytes(message.begin(), message.end());
  if (auto& damage = link(from, to).damage) {
    bytes[static_cast<size_t>(*damage) % bytes.size()] ^= std::byte{0x21};
    damage.reset();
    if (!damaged) damaged = now();
    happens(Fault::Kind::damage);
  }
  events_.at(*when, [this, from, to, bytes = std::move(bytes)]() mutable {
    auto* end = ends_[place(to)];
    if (end == nullptr || end->is_over_ || end->is_gone_[place(from)]) return;
    end->arrive({SimBackend::Arrival::Kind::message, from, std::move(bytes)});
  });
}

void SimNet::end_link(int from, int to, PeerEvent::Kind kind, const std::string& detail) {
  auto& way = link(from, to);
  if (way.ended) return;
  way.ended = true;
  if (now() < way.half_open_until) {
    events_.at(way.half_open_until,
               [=, this] { on_link_end(from, to, PeerEvent::Kind::lost, "timed out"); });
    return;
  }
  auto when = control_arrival(from, to, 0);
  // A goodbye arrives behind everything that was written before.
  if (kind == PeerEvent::Kind::left) *when = std::max(*when, way.last_of_all);
  events_.at(*when, [=, this] { on_link_end(from, to, kind, detail); });
  if (kind == PeerEvent::Kind::lost && traits_.fails_before_reason)
    events_.after(draw_delay(traits_.latency), [=, this] { fail_what_needs(to, from, false); });
}

void SimNet::on_link_end(int from, int to, PeerEvent::Kind kind, const std::string& detail) {
  auto* end = ends_[place(to)];
  if (end == nullptr || end->is_over_ || end->is_gone_[place(from)]) return;
  end->is_gone_[place(from)] = true;
  end->has_left_[place(from)] = kind == PeerEvent::Kind::left;
  fail_what_needs(to, from, kind == PeerEvent::Kind::lost && random_.chance(500));
  fail_tickets(to, from);
  SimBackend::Arrival arrival{SimBackend::Arrival::Kind::event, from};
  arrival.event = {from, kind, detail};
  end->arrive(std::move(arrival));
}

void SimNet::end_all_links(int rank, PeerEvent::Kind kind, const std::string& detail) {
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank) end_link(rank, peer, kind, detail);
}

void SimNet::kill(int rank) {
  auto* end = ends_[place(rank)];
  if (end == nullptr) return;
  end->is_over_ = true;
  for (const auto& [id, operation] : operations_)
    if (operation->end_ == end) withdraw(*operation);
  end_all_links(rank, PeerEvent::Kind::lost, "connection reset");
}

void SimNet::reset(int one, int other) {
  if (!link(one, other).ended && !link(other, one).ended) happens(Fault::Kind::reset);
  cut(one, other);
}

void SimNet::cut(int one, int other) {
  end_link(one, other, PeerEvent::Kind::lost, "connection reset");
  end_link(other, one, PeerEvent::Kind::lost, "connection reset");
}

// No rank knows which bytes were lost, so the link cannot go on afterwards.
void SimNet::half_open(int from, int to, Time until) {
  link(from, to).half_open_until = std::max(link(from, to).half_open_until, until);
  events_.at(until, [this, from, to] {
    if (link(from, to).dropped) cut(from, to);
  });
}

void SimNet::delay(int one, int other, Micros more) {
  link(one, other).more += more;
  link(other, one).more += more;
}

void SimNet::clog(int one, int other, Time until) {
  link(one, other).clogged_until = link(other, one).clogged_until = until;
}

void SimNet::slow(int one, int other, int64_t bytes_a_second) {
  link(one, other).bandwidth = link(other, one).bandwidth = bytes_a_second;
}

void SimNet::heal() {
  for (int from = 0; from < size_; ++from)
    for (int to = 0; to < size_; ++to) {
      auto& way = link(from, to);
      way.more = 0;
      way.bandwidth = traits_.bandwidth;
      way.clogged_until = way.half_open_until = std::min(now(), way.half_open_until);
      way.damage.reset();
      if (way.dropped && !way.ended) cut(from, to);
    }
}

// --- operations ---------------------------------------------------------------------------------

size_t SimNet::operations_left(int rank) const {
  return static_cast<size_t>(std::ranges::count_if(
      operations_, [&](const auto& one) { return one.second->end_ == ends_[place(rank)]; }));
}

bool SimNet::is_used(int rank, const std::byte* begin, size_t bytes) const {
  const auto reaches = [&](const std::byte* at) { return at >= begin && at < begin + bytes; };
  const bool has_ticket = std::ranges::any_of(tickets_[place(rank)], [&](const auto& one) {
    return one.second.state == TransferState::pending && reaches(one.second.data);
  });
  return has_ticket || std::ranges::any_of(operations_, [&](const auto& one) {
           const auto& operation = *one.second;
           if (operation.end_ != ends_[place(rank)] || operation.state_ != OperationState::pending)
             return false;
           return reaches(operation.collective_.input) || reaches(operation.collective_.output);
         });
}

bool SimNet::needs(const SimOperation& operation, int peer) const {
  const auto kind = operation.collective_.kind;
  const bool is_pair = kind == CollectiveKind::send || kind == CollectiveKind::recv;
  return !is_pair || operation.collective_.root == peer;
}

void SimNet::join(SimOperation& operation) {
  auto& made = meetings_[operation.key_];
  if (!made) {
    made = std::make_unique<Meeting>();
    made->operations.resize(place(size_), nullptr);
    made->is_pair = std::get<2>(operation.key_) >= 0;
    made->needed = made->is_pair ? 2 : size_;
  }
  const int rank = operation.end_->rank_;
  auto& mine = made->operations[place(rank)];
  if (mine != nullptr) {
    broken_promises.push_back("rank " + std::to_string(rank) + " started tag " +
                              std::to_string(operation.launch_.tag) + " twice");
    end_later(operation, OperationState::failed, {});
    return;
  }
  mine = &operation;
  ++made->came;
  // Nothing arrives over a link that has ended.
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank && operation.end_->is_gone_[place(peer)] && needs(operation, peer) &&
        !(operation.is_blocking() && operation.end_->has_left_[place(peer)]))
      return end_later(operation, OperationState::failed, draw_delay(20));
  if (made->came < made->needed) return;
  const auto key = operation.key_;
  resolve(*made);
  meetings_.erase(key);
}

void SimNet::withdraw(SimOperation& operation) {
  const auto found = meetings_.find(operation.key_);
  if (found == meetings_.end()) return;
  auto& mine = found->second->operations[place(operation.end_->rank_)];
  if (mine != &operation) return;
  mine = nullptr;
  if (--found->second->came == 0) meetings_.erase(found);
}

void SimNet::end_later(SimOperation& operation, OperationState state, Clock::duration delay) {
  events_.after(delay, [this, id = operation.id_, state] {
    const auto found = operations_.find(id);
    if (found == operations_.end()) return;
    auto& ended = *found->second;
    if (ended.coming_ != OperationState::pending || ended.end_->is_over_) return;
    if (state != OperationState::failed && !*ended.goes_well_) return;
    withdraw(ended);
    ended.coming_ = state;
    ended.end_->arrive({SimBackend::Arrival::Kind::operation, -1, {}, {}, id});
  });
}

// All ranks have started the operation. Computes their results and schedules their ends.
void SimNet::resolve(Meeting& meeting) {
  uint32_t verdict = 0;
  for (const auto* operation : meeting.operations)
    if (operation != nullptr) verdict |= operation->launch_.verdict;
  const auto why = disagreement(meeting);
  if (why.empty() && verdict == 0) compute(meeting);
  const auto goes_well = std::make_shared<bool>(true);
  struct End {
    SimOperation* operation;
    OperationState state;
    Time when;
  };
  std::vector<End> ends;
  for (auto* operation : meeting.operations) {
    if (operation == nullptr) continue;
    const int rank = operation->end_->rank_;
    auto state = verdict != 0 ? OperationState::vetoed : OperationState::done;
    if (!why.empty()) {
      state = OperationState::failed;
      operation->failure_.emplace(ErrorCode::mismatch, why);
    }
    Time when = now();
    bool comes = true;
    for (const auto* other : meeting.operations) {
      if (other == nullptr || other == operation) continue;
      const int from = other->end_->rank_;
      // A sender does not wait for data of its receiver, only for its start.
      const auto arrives = arrival(from, rank, other->result_.size() / place(size_));
      if (link(from, rank).ended || !arrives) comes = false;
      if (arrives) when = std::max(when, *arrives);
    }
    if (!comes) continue;  // the end of the link ends this operation
    operation->resolved_ = true;
    operation->goes_well_ = goes_well;
    ends.push_back({operation, state, when});
  }
  // A blocking send or receive goes through memory that both ranks see. A rank sees what its peer
  // finished before it learns that the peer has left. So both ends come together.
  const auto last = std::ranges::max_element(ends, {}, &End::when);
  for (const auto& [operation, state, when] : ends) {
    const auto kind = operation->collective_.kind;
    const bool is_seen =
        operation->is_blocking() && (kind == CollectiveKind::send || kind == CollectiveKind::recv);
    end_later(*operation, state, (is_seen ? last->when : when) - now());
  }
}

void SimNet::fail_what_needs(int rank, int peer, bool resolved_too) {
  auto* end = ends_[place(rank)];
  if (end == nullptr || end->is_over_) return;
  for (const auto& [id, operation] : operations_) {
    if (operation->end_ != end || operation->coming_ != OperationState::pending) continue;
    if (!needs(*operation, peer) || (operation->resolved_ && !resolved_too)) continue;
    // Shared memory, which serves blocking calls, does not notice that a rank leaves.
    if (operation->is_blocking() && end->has_left_[place(peer)]) continue;
    withdraw(*operation);
    operation->failure_.reset();
    operation->coming_ = OperationState::failed;
    end->arrive({SimBackend::Arrival::Kind::operation, -1, {}, {}, id});
  }
}

// --- messages with tags -------------------------------------------------------------------------

Ticket SimNet::send(int from, int to, const MessageHeader& header,
                    std::span<const std::byte> bytes) {
  const Ticket ticket = ++last_id_;
  auto& made = tickets_[place(from)][ticket];
  made = {.sends = true, .peer = to, .tag = header.tag, .key = header.key};
  made.data = const_cast<std::byte*>(bytes.data());
  made.bytes = bytes.size();
  if (ends_[place(from)]->is_gone_[place(to)] || ends_[place(from)]->is_over_) {
    finish(from, ticket, TransferState::failed);
    return ticket;
  }
  const bool is_eager = bytes.size() <= traits_.eager_bytes;
  const auto when = arrival(from, to, is_eager ? bytes.size() : 0);
  if (!when || link(from, to).ended) return ticket;
  Message message;
  message.length = bytes.size();
  message.verdict = header.verdict;
  if (is_eager) {
    message.bytes.assign(bytes.begin(), bytes.end());
    // The send completes before the message arrives.
    events_.at(std::min(*when, now() + draw_delay(20)),
               [=, this] { finish(from, ticket, TransferState::done); });
  } else {
    message.sender = ticket;
  }
  events_.at(*when, [this, from, to, tag = header.tag, key = header.key,
                     message = std::move(message)]() mutable {
    auto* end = ends_[place(to)];
    if (end == nullptr || end->is_over_ || end->is_gone_[place(from)]) return;
    for (const auto& [first, last] : discarded_[place(to)])
      if (tag >= first && tag <= last) {
        if (message.sender != 0) finish(from, message.sender, TransferState::done);
        return;
      }
    if (message.sender != 0 && !tickets_[place(from)].contains(message.sender)) return;
    const BoxKey at{from, to, tag, key};
    boxes_[at].messages.push_back(std::move(message));
    match(at);
  });
  return ticket;
}

Ticket SimNet::receive(int rank, int from, uint64_t tag, uint32_t key, std::span<std::byte> bytes) {
  const Ticket ticket = ++last_id_;
  auto& made = tickets_[place(rank)][ticket];
  made = {.sends = false, .peer = from, .tag = tag, .key = key};
  made.data = bytes.data();
  made.bytes = bytes.size();
  const BoxKey at{from, rank, tag, key};
  boxes_[at].receives.push_back(ticket);
  match(at);
  auto& end = *ends_[place(rank)];
  if (made.state == TransferState::pending && !made.in_transfer &&
      (end.is_gone_[place(from)] || end.is_over_))
    finish(rank, ticket, TransferState::failed);
  return ticket;
}

void SimNet::match(const BoxKey& key) {
  const auto [from, to, tag, number] = key;
  auto& box = boxes_[key];
  while (!box.messages.empty() && !box.receives.empty()) {
    auto message = std::move(box.messages.front());
    box.messages.pop_front();
    const Ticket ticket = box.receives.front();
    box.receives.pop_front();
    auto& mine = tickets_[place(to)].at(ticket);
    if (message.length != mine.bytes) {
      finish(to, ticket, TransferState::failed);
      if (message.sender != 0) finish(from, message.sender, TransferState::failed);
      continue;
    }
    mine.verdict |= message.verdict;
    if (message.sender == 0) {
      if (mine.bytes > 0) std::memcpy(mine.data, message.bytes.data(), mine.bytes);
      finish(to, ticket, TransferState::done);
      continue;
    }
    mine.in_transfer = true;
    if (const auto found = tickets_[place(from)].find(message.sender);
        found != tickets_[place(from)].end())
      found->second.in_transfer = true;
    const auto when = arrival(from, to, mine.bytes);
    if (!when) continue;
    events_.at(*when, [this, from = from, to = to, ticket, sender = message.sender] {
      const auto mine = tickets_[place(to)].find(ticket);
      const auto theirs = tickets_[place(from)].find(sender);
      if (mine == tickets_[place(to)].end() || theirs == tickets_[place(from)].end()) return;
      if (mine->second.state != TransferState::pending ||
          theirs->second.state != TransferState::pending)
        return;
      std::copy_n(theirs->second.data, mine->second.bytes, mine->second.data);
      finish(to, ticket, TransferState::done);
      finish(from, sender, TransferState::done);
    });
  }
  if (box.messages.empty() && box.receives.empty()) boxes_.erase(key);
}

void SimNet::finish(int rank, Ticket ticket, TransferState state) {
  auto& mine = tickets_[place(rank)];
  const auto found = mine.find(ticket);
  if (found == mine.end() || found->second.state != TransferState::pending) return;
  found->second.state = state;
  if (auto* end = ends_[place(rank)])
    end->arrive({SimBackend::Arrival::Kind::ticket, -1, {}, {}, ticket});
}

void SimNet::cancel(int rank, Ticket ticket) {
  const auto found = tickets_[place(rank)].find(ticket);
  if (found == tickets_[place(rank)].end()) return;
  auto& one = found->second;
  if (one.state != TransferState::pending || one.in_transfer) return;
  const BoxKey key = one.sends ? BoxKey{rank, one.peer, one.tag, one.key}
                               : BoxKey{one.peer, rank, one.tag, one.key};
  if (const auto box = boxes_.find(key); box != boxes_.end()) {
    if (one.sends)
      std::erase_if(box->second.messages,
                    [&](const Message& message) { return message.sender == ticket; });
    else
      std::erase(box->second.receives, ticket);
  }
  if (one.sends && one.bytes <= traits_.eager_bytes) return;  // it is about to complete
  finish(rank, ticket, TransferState::failed);
}

void SimNet::discard(int rank, uint64_t first, uint64_t last) {
  discarded_[place(rank)].emplace_back(first, last);
  for (auto& [key, box] : boxes_) {
    const auto [from, to, tag, number] = key;
    if (to != rank || tag < first || tag > last) continue;
    for (const auto& message : box.messages)
      if (message.sender != 0) finish(from, message.sender, TransferState::done);
    box.messages.clear();
  }
}

void SimNet::fail_tickets(int rank, int peer) {
  for (auto& [ticket, one] : tickets_[place(rank)])
    if (one.peer == peer) {
      // Messages that arrived before the end of the link stay.
      const BoxKey key{peer, rank, one.tag, one.key};
      if (!one.sends && boxes_.contains(key)) std::erase(boxes_[key].receives, ticket);
      finish(rank, ticket, TransferState::failed);
    }
}

}  // namespace tutti::simulation
