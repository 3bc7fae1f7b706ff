#include "tutti/backends/hierarchical/mixed_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "tutti/base/check.h"
#include "tutti/base/deadline.h"

namespace tutti {

MixedTransport::MixedTransport(std::unique_ptr<Transport> near, std::vector<int> near_ranks,
                               std::unique_ptr<Transport> far)
    : near_(std::move(near)), near_ranks_(std::move(near_ranks)), far_(std::move(far)) {
  for (int peer = 0; peer < far_->size(); ++peer) ways_.push_back({far_.get(), peer});
  if (near_) {
    for (size_t i = 0; i < near_ranks_.size(); ++i)
      ways_[static_cast<size_t>(near_ranks_[i])] = {near_.get(), static_cast<int>(i)};
    poller_.watch(near_->descriptor(), EPOLLIN);
  }
  poller_.watch(far_->descriptor(), EPOLLIN);
}

MixedTransport::~MixedTransport() {
  if (near_) poller_.forget(near_->descriptor());
  poller_.forget(far_->descriptor());
}

bool MixedTransport::progress() {
  const bool moved = near_ && near_->progress();
  return far_->progress() || moved;
}

bool MixedTransport::arm() { return (!near_ || near_->arm()) && far_->arm(); }

void MixedTransport::abort(const Error& error) noexcept {
  if (near_) near_->abort(error);
  far_->abort(error);
}

Ticket MixedTransport::keep(Transport* transport, Ticket ticket) {
  if (free_.empty()) {
    ++allocations_;
    free_.push_back(static_cast<uint32_t>(pending_.size()));
    pending_.emplace_back();
  }
  const uint32_t place = free_.back();
  free_.pop_back();
  auto& pending = pending_[place];
  ++pending.generation;
  pending.transport = transport;
  pending.ticket = ticket;
  return Ticket{pending.generation} << 32 | (place + 1);
}

MixedTransport::Pending* MixedTransport::find(Ticket ticket) {
  const auto place = (ticket & 0xffffffffu) - 1;
  TUTTI_CHECK(place < pending_.size());
  auto& pending = pending_[place];
  TUTTI_CHECK(pending.generation == ticket >> 32 && pending.transport != nullptr);
  return &pending;
}

Ticket MixedTransport::isend(int peer, const MessageHeader& header,
                             std::span<const std::byte> bytes) {
  const auto& to = way(peer);
  return keep(to.transport, to.transport->isend(to.peer, header, bytes));
}

Ticket MixedTransport::irecv(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) {
  const auto& from = way(peer);
  return keep(from.transport, from.transport->irecv(from.peer, tag, key, bytes));
}

TransferState MixedTransport::test(Ticket ticket, uint32_t* verdict) {
  auto* pending = find(ticket);
  const auto state = pending->transport->test(pending->ticket, verdict);
  if (state == TransferState::pending) return state;
  pending->transport = nullptr;
  free_.push_back(static_cast<uint32_t>(pending - pending_.data()));
  return state;
}

void MixedTransport::cancel(Ticket ticket) {
  const auto* pending = find(ticket);
  pending->transport->cancel(pending->ticket);
}

void MixedTransport::discard(uint64_t first, uint64_t last) {
  if (near_) near_->discard(first, last);
  far_->discard(first, last);
}

bool MixedTransport::has_veto(uint64_t tag) const {
  return (near_ && near_->has_veto(tag)) || far_->has_veto(tag);
}

void MixedTransport::post(int peer, std::span<const std::byte> message) {
  way(peer).transport->post(way(peer).peer, message);
}

bool MixedTransport::take(int& peer, std::vector<std::byte>& message) {
  if (near_ && near_->take(peer, message)) {
    peer = near_ranks_[static_cast<size_t>(peer)];
    return true;
  }
  return far_->take(peer, message);
}

std::optional<PeerEvent> MixedTransport::take_event() {
  if (near_)
    if (auto event = near_->take_event()) {
      event->peer = near_ranks_[static_cast<size_t>(event->peer)];
      return event;
    }
  // The near transport reports the events of ranks on this host. So the far transport's events of
  // those ranks are dropped.
  while (auto event = far_->take_event())
    if (way(event->peer).transport == far_.get()) return event;
  return {};
}

void MixedTransport::goodbye(double seconds) noexcept {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  if (near_) near_->goodbye(seconds);
  far_->goodbye(std::max(0.0, std::chrono::duration<double>(end - Clock::now()).count()));
}

TransportCounters MixedTransport::counters() const {
  auto counters = far_->counters();
  counters.allocations += allocations_;
  if (!near_) return counters;
  auto near = near_->counters();
  const auto to_peer = std::exchange(near.bytes_to_peer, {});
  add(counters, near);
  for (size_t i = 0; i < to_peer.size(); ++i)
    counters.bytes_to_peer[static_cast<size_t>(near_ranks_[i])] += to_peer[i];
  return counters;
}

std::string_view MixedTransport::route(int peer) const {
  return way(peer).transport->route(way(peer).peer);
}

}  // namespace tutti
