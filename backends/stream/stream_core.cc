#include "tutti/backends/stream/stream_core.h"

#include <cstring>
#include <utility>

#include "tutti/base/check.h"

namespace tutti {

namespace {

using Stage = Transfer::Stage;

// The maximum bytes of one peer's control messages that wait for take(). At this bound this rank
// stops reading from the peer.
constexpr size_t kMaxInboxBytes = 64 << 20;
constexpr size_t kMostSpareBuffers = 16;
constexpr size_t kMostSpareBytes = 64 << 10;

}  // namespace

StreamCore::StreamCore(int rank, std::vector<std::unique_ptr<Channel>> channels,
                       std::optional<uint64_t> credit)
    : rank_(rank),
      credit_(credit.value_or(eager_credit(static_cast<int>(channels.size())))),
      transfers_(counters_.allocations),
      arrival_nodes_(counters_.allocations),
      frames_(counters_.allocations),
      buffers_(credit_ * channels.size()) {
  const int size = static_cast<int>(channels.size());
  TUTTI_CHECK(rank >= 0 && rank < size);
  counters_.bytes_to_peer.assign(channels.size(), 0);
  for (int i = 0; i < size; ++i) {
    const auto at = static_cast<size_t>(i);
    TUTTI_CHECK((channels[at] == nullptr) == (i == rank));
    peers_.push_back(i == rank ? nullptr
                               : std::make_unique<Peer>(i, Outlet::Shared{frames_, counters_},
                                                        counters_.bytes_to_peer[at], credit_));
    if (i == rank) continue;
    peers_[at]->route = channels[at]->route();
    peers_[at]->channel = std::move(channels[at]);
  }
}

// --- tickets ------------------------------------------------------------------------------------

StreamCore::Peer& StreamCore::peer_at(int rank) {
  TUTTI_CHECK(rank >= 0 && rank < size() && rank != rank_);
  return *peers_[static_cast<size_t>(rank)];
}

Transfer* StreamCore::make_transfer(int peer, uint64_t tag, uint32_t key, bool is_send,
                                    size_t bytes) {
  Transfer* transfer = transfers_.take();
  ++transfer->generation;
  transfer->stage = Stage::failed;
  transfer->is_send = is_send;
  transfer->peer = peer;
  transfer->tag = tag;
  transfer->key = key;
  transfer->verdict = 0;
  transfer->source = nullptr;
  transfer->target = nullptr;
  transfer->bytes = bytes;
  transfer->moved = 0;
  transfer->remote = 0;
  return transfer;
}

Transfer* StreamCore::find(Ticket ticket) {
  const auto index = static_cast<uint32_t>(ticket);
  Transfer* transfer = index == 0 ? nullptr : transfers_.at(index - 1);
  const bool is_it = transfer && transfer->stage != Stage::unused && transfer->ticket() == ticket;
  return is_it ? transfer : nullptr;
}

Transfer* StreamCore::find_send(const Peer& peer, Ticket ticket, Stage stage) {
  Transfer* transfer = find(ticket);
  const bool is_it =
      transfer && transfer->is_send && transfer->peer == peer.rank && transfer->stage == stage;
  return is_it ? transfer : nullptr;
}

Ticket StreamCore::isend(int to, const MessageHeader& header, std::span<const std::byte> bytes) {
  Peer& peer = peer_at(to);
  Transfer* transfer = make_transfer(to, header.tag, header.key, true, bytes.size());
  transfer->verdict = header.verdict;
  transfer->source = bytes.data();
  if (peer.channel && !aborted_) {
    transfer->stage = Stage::fresh;
    peer.outlet.send(transfer);
  }
  return transfer->ticket();
}

Ticket StreamCore::irecv(int from, uint64_t tag, uint32_t key, std::span<std::byte> bytes) {
  peer_at(from);
  Transfer* transfer = make_transfer(from, tag, key, false, bytes.size());
  transfer->target = bytes.data();
  if (!aborted_) match(transfer);
  return transfer->ticket();
}

TransferState StreamCore::test(Ticket ticket, uint32_t* verdict) {
  Transfer* transfer = find(ticket);
  if (!transfer) return TransferState::failed;
  if (!transfer->over()) return TransferState::pending;
  const bool done = transfer->stage == Stage::done;
  if (done && !transfer->is_send && verdict) *verdict |= transfer->verdict;
  if (!transfer->is_send && transfer->verdict != 0) std::erase(vetoed_, transfer);
  transfer->stage = Stage::unused;
  transfers_.give_back(transfer);
  return done ? TransferState::done : TransferState::failed;
}

void StreamCore::cancel(Ticket ticket) {
  Transfer* transfer = find(ticket);
  if (!transfer || transfer->over()) return;
  Peer& peer = peer_at(transfer->peer);
  if (transfer->is_send) return peer.outlet.cancel(transfer);
  // Bytes that still arrive for this receive are thrown away.
  if (transfer->stage == Stage::posted) posted_.remove(transfer);
  if (peer.receive == transfer) {
    peer.receive = nullptr;
    peer.inlet.redirect(nullptr);
  }
  finish(transfer, Stage::failed);
}

void StreamCore::finish(Transfer* transfer, Stage stage) { transfer->stage = stage; }

// --- matching -----------------------------------------------------------------------------------

// Looks for the message of a receive. The receive is new, or the sender withdrew its granted
// message.
void StreamCore::match(Transfer* receive) {
  if (Arrival* arrival = arrivals_.find(receive->peer, receive->tag, receive->key))
    return take_arrival(receive, arrival);
  if (!peer_at(receive->peer).channel) return finish(receive, Stage::failed);
  receive->stage = Stage::posted;
  posted_.add(receive);
}

void StreamCore::take_arrival(Transfer* receive, Arrival* arrival) {
  Peer& peer = peer_at(receive->peer);
  receive->verdict = arrival->verdict;
  if (receive->verdict != 0) vetoed_.push_back(receive);
  if (arrival->announced) {
    grant_or_refuse(peer, receive, arrival->bytes, arrival->remote);
    --peer.announces_held;
    return forget_arrival(arrival);
  }
  const bool fits = receive->bytes == arrival->bytes;
  const size_t here = arrival->complete ? arrival->bytes : peer.inlet.arrived();
  if (fits && here > 0) std::memcpy(receive->target, arrival->buffer, here);
  if (arrival->complete) {
    finish(receive, fits ? Stage::done : Stage::failed);
    return_credit(peer, eager_cost(arrival->bytes));
  } else {
    // The rest of the message is read straight into the receive's memory. If the message has the
    // wrong length, its rest is thrown away.
    peer.arrival = nullptr;
    peer.receive = fits ? receive : nullptr;
    peer.inlet.redirect(fits ? receive->target : nullptr);
    finish(receive, fits ? Stage::filling : Stage::failed);
  }
  forget_arrival(arrival);
}

void StreamCore::grant_or_refuse(Peer& peer, Transfer* receive, size_t bytes, Ticket remote) {
  if (receive->bytes != bytes) {
    peer.outlet.tell({.type = FrameType::refuse, .ticket = remote});
    return finish(receive, Stage::failed);
  }
  receive->stage = Stage::granted;
  receive->remote = remote;
  receive->moved = 0;
  peer.outlet.tell({.type = FrameType::grant, .tag = receive->ticket(), .ticket = remote});
}

void StreamCore::forget_arrival(Arrival* arrival) {
  arrivals_.remove(arrival);
  if (arrival->verdict != 0) --vetoes_here_;
  if (!arrival->announced) buffers_.give_back(arrival->buffer, arrival->bytes);
  arrival_nodes_.give_back(arrival);
}

void StreamCore::return_credit(Peer& peer, uint64_t cost) {
  peer.eager_held -= cost;
  if (peer.channel) peer.outlet.return_credit(cost);
}

// --- discarded tags -----------------------------------------------------------------------------

void StreamCore::discard(uint64_t first, uint64_t last) {
  if (first > last) return;
  arrivals_.for_each([&](Arrival* arrival) {
    if (arrival->tag < first || arrival->tag > last) return;
    Peer& peer = peer_at(arrival->peer);
    if (arrival->announced) {
      --peer.announces_held;
      if (peer.channel) peer.outlet.tell({.type = FrameType::refuse, .ticket = arrival->remote});
    } else if (arrival->complete) {
      return_credit(peer, eager_cost(arrival->bytes));
    } else {
      peer.arrival = nullptr;
      peer.inlet.redirect(nullptr);
    }
    forget_arrival(arrival);
  });
  discarded_.insert(first, last);
}

bool StreamCore::has_veto(uint64_t tag) const {
  for (const Transfer* receive : vetoed_)
    if (receive->tag == tag) return true;
  return vetoes_here_ > 0 &&
         arrivals_.any(tag, [](const Arrival& arrival) { return arrival.verdict != 0; });
}

// --- incoming frames ----------------------------------------------------------------------------

std::byte* StreamCore::frame_begins(int from, const FrameHeader& frame) {
  Peer& peer = peer_at(from);
  switch (frame.type) {
    case FrameType::eager:
      return eager_begins(peer, frame);
    case FrameType::data:
      return data_begins(peer, frame);
    case FrameType::control:
      if (!spare_.empty()) {
        peer.control = std::move(spare_.back());
        spare_.pop_back();
      }
      peer.control.resize(frame.payload());
      return peer.control.data();
    default:
      return nullptr;
  }
}

Transfer* StreamCore::take_posted(const Peer& peer, const FrameHeader& frame) {
  Transfer* receive = posted_.find(peer.rank, frame.tag, frame.key);
  if (receive == nullptr) return nullptr;
  posted_.remove(receive);
  receive->verdict = frame.verdict;
  if (receive->verdict != 0) vetoed_.push_back(receive);
  return receive;
}

Arrival* StreamCore::arrive(const Peer& peer, const FrameHeader& frame) {
  Arrival* arrival = arrival_nodes_.take();
  arrival->peer = peer.rank;
  arrival->tag = frame.tag;
  arrival->key = frame.key;
  arrival->verdict = frame.verdict;
  arrival->bytes = frame.length;
  arrival->announced = frame.type == FrameType::announce;
  arrival->complete = false;
  arrival->remote = arrival->announced ? frame.ticket : 0;
  arrivals_.add(arrival);
  if (arrival->verdict != 0) ++vetoes_here_;
  return arrival;
}

std::byte* StreamCore::eager_begins(Peer& peer, const FrameHeader& frame) {
  peer.eager_held += eager_cost(frame.length);
  if (peer.eager_held > credit_)
    throw Error(ErrorCode::corrupt_data, "it sent more messages than it had credit for");
  peer.outlet.add_credit(frame.ticket);
  if (discarded_.contains(frame.tag)) return nullptr;
  if (Transfer* receive = take_posted(peer, frame)) {
    if (receive->bytes != frame.length) {
      finish(receive, Stage::failed);
      return nullptr;
    }
    receive->stage = Stage::filling;
    peer.receive = receive;
    return receive->target;
  }
  peer.arrival = arrive(peer, frame);
  return peer.arrival->buffer = buffers_.take(frame.length);
}

std::byte* StreamCore::data_begins(Peer& peer, const FrameHeader& frame) {
  Transfer* receive = find(frame.ticket);
  // If there is no such receive, it was cancelled after its grant. Then the data is thrown away.
  if (!receive || receive->is_send || receive->peer != peer.rank ||
      receive->stage != Stage::granted)
    return nullptr;
  if (frame.length > receive->bytes - receive->moved)
    throw Error(ErrorCode::corrupt_data, "it sent more data than the message has");
  peer.receive = receive;
  return receive->target + receive->moved;
}

void StreamCore::frame_ends(int from, const FrameHeader& frame) {
  Peer& peer = peer_at(from);
  switch (frame.type) {
    case FrameType::eager:
      if (peer.arrival) {
        peer.arrival->complete = true;
        peer.arrival = nullptr;
        return;
      }
      if (peer.receive) finish(std::exchange(peer.receive, nullptr), Stage::done);
      return return_credit(peer, eager_cost(frame.length));
    case FrameType::data:
      if (Transfer* receive = std::exchange(peer.receive, nullptr)) {
        receive->moved += frame.length;
        if (receive->moved == receive->bytes) finish(receive, Stage::done);
      }
      return;
    case FrameType::announce:
      return announced(peer, frame);
    case FrameType::grant:
      if (Transfer* send = find_send(peer, frame.ticket, Stage::announced))
        peer.outlet.grant(send, frame.tag);
      return;
    case FrameType::refuse:
      if (Transfer* send = find_send(peer, frame.ticket, Stage::announced))
        peer.outlet.refuse(send);
      return;
    case FrameType::withdraw:
      return withdrawn(peer, frame);
    case FrameType::credit:
      return peer.outlet.add_credit(frame.length);
    case FrameType::control:
      peer.inbox_bytes += peer.control.size();
      inbox_.push_back({peer.rank, std::exchange(peer.control, {})});
      if (peer.inbox_bytes >= kMaxInboxBytes) peer.inlet.stop();
      return;
    case FrameType::goodbye:
      peer.said_goodbye = true;
      return peer.inlet.stop();
  }
}

void StreamCore::announced(Peer& peer, const FrameHeader& frame) {
  if (discarded_.contains(frame.tag))
    return peer.outlet.tell({.type = FrameType::refuse, .ticket = frame.ticket});
  if (Transfer* receive = take_posted(peer, frame))
    return grant_or_refuse(peer, receive, frame.length, frame.ticket);
  if (++peer.announces_held > kMaxAnnounced)
    throw Error(ErrorCode::corrupt_data, "it announced more messages than are allowed");
  arrive(peer, frame);
}

void StreamCore::withdrawn(Peer& peer, const FrameHeader& frame) {
  Arrival* found = nullptr;
  arrivals_.any(frame.tag, [&](Arrival& arrival) {
    const bool is_it =
        arrival.peer == peer.rank && arrival.announced && arrival.remote == frame.ticket;
    if (is_it) found = &arrival;
    return is_it;
  });
  if (found) {
    --peer.announces_held;
    return forget_arrival(found);
  }
  // This rank has already granted the message to a receive. The receive waits again, as if the
  // message had never been sent.
  transfers_.for_each([&](Transfer& receive) {
    if (receive.is_send || receive.stage != Stage::granted || receive.peer != peer.rank ||
        receive.remote != frame.ticket)
      return;
    if (receive.verdict != 0) std::erase(vetoed_, &receive);
    receive.verdict = 0;
    match(&receive);
  });
}

// --- control messages and events ----------------------------------------------------------------

void StreamCore::post(int to, std::span<const std::byte> message) {
  TUTTI_CHECK(message.size() <= kMaxControlBytes);
  Peer& peer = peer_at(to);
  if (!peer.channel || aborted_) return;
  if (!peer.outlet.post(message)) lose(peer, "it does not take its control messages");
}

bool StreamCore::take(int& peer, std::vector<std::byte>& message) {
  if (inbox_.empty()) return false;
  auto& oldest = inbox_.front();
  peer = oldest.peer;
  message.swap(oldest.bytes);
  Peer& from = peer_at(peer);
  from.inbox_bytes -= message.size();
  if (from.inbox_bytes < kMaxInboxBytes && !from.said_goodbye) from.inlet.resume();
  if (spare_.size() < kMostSpareBuffers && oldest.bytes.capacity() <= kMostSpareBytes)
    spare_.push_back(std::move(oldest.bytes));
  inbox_.pop_front();
  return true;
}

std::optional<PeerEvent> StreamCore::take_event() {
  if (events_.empty()) return {};
  auto event = std::move(events_.front());
  events_.pop_front();
  return event;
}

double StreamCore::quiet_seconds(int peer) {
  Peer& asked = peer_at(peer);
  return asked.channel ? asked.channel->quiet_seconds() : kQuietForEver;
}

std::string_view StreamCore::route(int peer) const {
  if (peer == rank_) return "self";
  return peers_.at(static_cast<size_t>(peer))->route;
}

}  // namespace tutti
