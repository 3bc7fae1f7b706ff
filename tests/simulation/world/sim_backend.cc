#include "tests/simulation/world/sim_backend.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tutti/kernels/reduce.h"

namespace tutti::simulation {

namespace {

bool is_of_two(CollectiveKind kind) {
  return kind == CollectiveKind::send || kind == CollectiveKind::recv;
}

}  // namespace

// --- operations ---------------------------------------------------------------------------------

SimOperation::SimOperation(SimBackend& end, const Collective& collective, const Launch& launch)
    : end_(&end),
      id_(++end.net_.last_id_),
      collective_(collective),
      send_counts_(collective.send_counts.begin(), collective.send_counts.end()),
      recv_counts_(collective.recv_counts.begin(), collective.recv_counts.end()),
      launch_(launch),
      name_(launch.name) {
  const int rank = end.rank_, root = collective.root;
  if (is_of_two(collective.kind)) {
    const bool sends = collective.kind == CollectiveKind::send;
    const int from = sends ? rank : root, to = sends ? root : rank;
    // The tags of blocking operations count the calls of each pair of ranks.
    const uint64_t tag =
        launch.name.empty() ? launch.tag : ++end.net_.pair_calls_[SimNet::place(rank)][{from, to}];
    key_ = {launch.queue, tag, from, to};
  } else {
    key_ = {launch.queue, launch.tag, -1, -1};
  }
  end.net_.operations_[id_] = this;
}

SimOperation::~SimOperation() {
  end_->net_.withdraw(*this);
  end_->net_.operations_.erase(id_);
  // If a rank releases its operation before the end, the other ranks never get its part.
  if (!resolved_ || coming_ != OperationState::pending) return;
  *goes_well_ = false;
  for (const auto& [id, other] : end_->net_.operations_)
    if (other->goes_well_ == goes_well_ && other->coming_ == OperationState::pending)
      other->resolved_ = false;
}

const std::byte* SimOperation::input() const {
  return packed_.empty() ? collective_.input : packed_.data();
}

OperationState SimOperation::advance() {
  const bool is_seen = is_seen_ || end_->net_.traits_.works_elsewhere || end_->is_over_;
  if (state_ != OperationState::pending || !is_seen || coming_ == OperationState::pending)
    return state_;
  if (coming_ == OperationState::done) bring();
  return state_ = coming_;
}

void SimOperation::bring() {
  const auto& edges = launch_.edges;
  if (edges.drain != nullptr) {
    if (collective_.output != nullptr && !result_.empty())
      std::copy(result_.begin(), result_.end(), collective_.output);
    edges.drain(edges.self, {0, send_counts_[0]}, result_.data(), {});
  } else if (!result_.empty()) {
    std::copy(result_.begin(), result_.end(), collective_.output);
  }
}

void SimOperation::cancel() {
  if (state_ != OperationState::pending || coming_ != OperationState::pending || is_cancelled_)
    return;
  is_cancelled_ = true;
  auto& net = end_->net_;
  if (net.traits_.cannot_cancel) {
    // A cancelled call may end up to a quarter of a second later; the judge allows that much.
    net.end_later(*this, OperationState::failed, net.draw_delay(kSecond / 4));
    return;
  }
  if (!resolved_) net.withdraw(*this);
  net.end_later(*this, OperationState::failed, net.draw_delay(50));
}

// --- the backend --------------------------------------------------------------------------------

SimBackend::SimBackend(SimNet& net, int rank)
    : net_(net),
      rank_(rank),
      has_left_(SimNet::place(net.size_), false),
      is_gone_(SimNet::place(net.size_), false),
      heard_(SimNet::place(net.size_), net.now()) {
  counters_.bytes_to_peer.resize(SimNet::place(net.size_));
}

SimBackend::~SimBackend() {
  net_.kill(rank_);
  net_.ends_[SimNet::place(rank_)] = nullptr;
}

Capabilities SimBackend::capabilities() const {
  Capabilities made;
  made.name = "simulated";
  made.across_hosts = true;
  return made;
}

std::unique_ptr<Region> SimBackend::allocate(size_t bytes, Device device) {
  if (device.kind != DeviceKind::cpu)
    throw Error(ErrorCode::unavailable, "the simulated backend has memory of the host alone");
  return std::make_unique<CountedRegion>(make_heap_region(bytes), regions_);
}

bool SimBackend::packs_itself(const Collective& collective, const Launch& launch) const {
  constexpr int kBlocking = 2;
  if (launch.queue == kBlocking && !launch.name.empty()) return net_.traits_.serves_blocking;
  return net_.traits_.packs && launch.queue != kNoQueue && !is_of_two(collective.kind);
}

void SimBackend::check(const Collective& collective) const {
  const auto refuse = [](const char* why) { throw Error(ErrorCode::invalid_argument, why); };
  const auto n = SimNet::place(net_.size_);
  const auto kind = collective.kind;
  if (kind == CollectiveKind::barrier) return;
  const bool is_dealt = kind == CollectiveKind::allgather || kind == CollectiveKind::gather ||
                        kind == CollectiveKind::scatter || kind == CollectiveKind::reduce_scatter ||
                        kind == CollectiveKind::alltoall;
  if (collective.send_counts.size() != (is_dealt ? n : 1)) refuse("so many counts make no sense");
  if (kind == CollectiveKind::alltoall && collective.recv_counts.size() != n)
    refuse("so many counts make no sense");
  for (const auto& counts : {collective.send_counts, collective.recv_counts})
    for (const int64_t count : counts)
      if (count < 0) refuse("a count is negative");
  if (collective.root < 0 || collective.root >= net_.size_) refuse("there is no such rank");
  if (is_of_two(kind) && collective.root == rank_) refuse("a rank sends itself nothing");
  if (reduces(kind) && !can_reduce(collective.dtype, collective.op)) refuse("no such op");
}

OperationPtr SimBackend::start(const Collective& collective, const Launch& launch) {
  check(collective);
  const bool fails = on_start && on_start(collective, launch);
  auto made = std::make_unique<SimOperation>(*this, collective, launch);
  const auto& edges = launch.edges;
  if (edges.fill != nullptr && launch.verdict == 0) {
    const Range all{0, collective.send_counts[0]};
    if (collective.output != nullptr) {
      edges.fill(edges.self, all, collective.output);
    } else {
      made->packed_.resize(SimNet::place(static_cast<int>(all.count * size_of(collective.dtype))));
      edges.fill(edges.self, all, made->packed_.data());
    }
  }
  ++counters_.messages_sent;
  if (is_over_)
    made->coming_ = OperationState::failed;
  else if (fails) {
    if (net_.random_.chance(500))
      made->failure_.emplace(ErrorCode::io, "the simulated network failed");
    net_.end_later(*made, OperationState::failed, net_.draw_delay(100));
  } else {
    net_.join(*made);
  }
  return OperationPtr(made.release());
}

std::vector<int> SimBackend::missing(int queue) const {
  const SimOperation* oldest = nullptr;
  for (const auto& [id, operation] : net_.operations_)
    if (operation->end_ == this && operation->launch_.queue == queue && !operation->resolved_ &&
        operation->coming_ == OperationState::pending) {
      oldest = operation;
      break;
    }
  std::vector<int> ranks;
  if (oldest == nullptr) return ranks;
  const auto found = net_.meetings_.find(oldest->key_);
  if (found == net_.meetings_.end()) return ranks;
  for (int peer = 0; peer < net_.size_; ++peer)
    if (peer != rank_ && net_.needs(*oldest, peer) &&
        found->second->operations[SimNet::place(peer)] == nullptr)
      ranks.push_back(peer);
  return ranks;
}

void SimBackend::arrive(Arrival arrival) {
  if (is_over_) return;
  if (arrival.from >= 0) heard_[SimNet::place(arrival.from)] = net_.now();
  arrivals_.push_back(std::move(arrival));
  if (!is_armed_) return;
  is_armed_ = false;
  if (on_wake) on_wake();
}

bool SimBackend::progress() {
  bool moved = false;
  while (!arrivals_.empty()) {
    auto arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
    switch (arrival.kind) {
      case Arrival::Kind::message:
        inbox_.emplace_back(arrival.from, std::move(arrival.bytes));
        break;
      case Arrival::Kind::event:
        peer_events_.push_back(std::move(arrival.event));
        break;
      case Arrival::Kind::operation:
        if (const auto found = net_.operations_.find(arrival.id); found != net_.operations_.end())
          found->second->is_seen_ = true;
        if (!net_.traits_.works_elsewhere) break;
        // A library's threads complete the operation, so it is not progress of this rank. But arm()
        // reports it.
        has_news_ = true;
        continue;
      case Arrival::Kind::ticket: {
        auto& tickets = net_.tickets_[SimNet::place(rank_)];
        if (const auto found = tickets.find(arrival.id); found != tickets.end())
          found->second.seen = found->second.state;
        break;
      }
    }
    moved = true;
  }
  return moved;
}

bool SimBackend::arm() {
  is_armed_ = (arrivals_.empty() && !has_news_) || is_over_;
  has_news_ = false;
  return is_armed_;
}

void SimBackend::abort(const Error&) noexcept {
  if (is_over_) return;
  net_.kill(rank_);
  for (const auto& [id, operation] : net_.operations_)
    if (operation->end_ == this && operation->coming_ == OperationState::pending)
      operation->coming_ = OperationState::failed;
  for (auto& [ticket, one] : net_.tickets_[SimNet::place(rank_)]) {
    if (one.state == TransferState::pending) one.state = TransferState::failed;
    one.seen = one.state;
  }
  arrivals_.clear();
  inbox_.clear();
  peer_events_.clear();
}

// --- the transport ------------------------------------------------------------------------------

Ticket SimBackend::isend(int peer, const MessageHeader& header, std::span<const std::byte> bytes) {
  return net_.send(rank_, peer, header, bytes);
}

Ticket SimBackend::irecv(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) {
  return net_.receive(rank_, peer, tag, key, bytes);
}

TransferState SimBackend::test(Ticket ticket, uint32_t* verdict) {
  auto& tickets = net_.tickets_[SimNet::place(rank_)];
  const auto found = tickets.find(ticket);
  if (found == tickets.end()) return TransferState::failed;
  const auto state = is_over_ ? found->second.state : found->second.seen;
  if (state == TransferState::pending) return state;
  if (verdict != nullptr) *verdict |= found->second.verdict;
  tickets.erase(found);
  return state;
}

bool SimBackend::has_veto(uint64_t tag) const {
  return std::ranges::any_of(net_.operations_, [&](const auto& one) {
    return one.second->launch_.tag == tag && one.second->launch_.verdict != 0;
  });
}

void SimBackend::post(int peer, std::span<const std::byte> message) {
  if (on_post) on_post(peer, message);
  ++counters_.control_messages_sent;
  counters_.control_bytes_sent += message.size();
  if (is_over_ || is_gone_[SimNet::place(peer)]) return;
  net_.post(rank_, peer, message);
}

bool SimBackend::take(int& peer, std::vector<std::byte>& message) {
  if (inbox_.empty()) return false;
  peer = inbox_.front().first;
  message = std::move(inbox_.front().second);
  inbox_.pop_front();
  return true;
}

std::optional<PeerEvent> SimBackend::take_event() {
  if (peer_events_.empty()) return {};
  auto event = std::move(peer_events_.front());
  peer_events_.pop_front();
  return event;
}

void SimBackend::goodbye(double) noexcept {
  if (is_over_) return;
  is_over_ = true;
  net_.end_all_links(rank_, PeerEvent::Kind::left, "");
}

double SimBackend::quiet_seconds(int peer) {
  if (net_.traits_.salt % 2 == 0) return kQuietForEver;
  return std::chrono::duration<double>(net_.now() - heard_[SimNet::place(peer)]).count();
}

}  // namespace tutti::simulation
