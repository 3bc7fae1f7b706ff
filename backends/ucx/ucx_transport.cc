#include "tutti/backends/ucx/ucx_transport.h"

#include <cstring>
#include <utility>

#include "tutti/backends/stream/frame.h"
#include "tutti/backends/ucx/limits.h"
#include "tutti/base/check.h"

// Posted messages and their results. Incoming messages are handled in ucx_progress.cc. The start
// and the end are in ucx_connect.cc.

namespace tutti {

using Stage = UcxTransfer::Stage;
using Type = UcxMessageType;

UcxTransport::Peer& UcxTransport::peer_at(int rank) {
  TUTTI_CHECK(rank >= 0 && rank < size() && rank != rank_);
  return *peers_[static_cast<size_t>(rank)];
}

UcxTransfer* UcxTransport::make_transfer(int peer, uint64_t tag, uint32_t key, bool is_send,
                                         size_t bytes) {
  UcxTransfer* transfer = transfers_.take();
  ++transfer->generation;
  ++open_transfers_;
  transfer->stage = Stage::failed;
  transfer->is_send = is_send;
  transfer->is_rendezvous = transfer->is_put = transfer->is_starved = false;
  transfer->doomed = transfer->awaits_answer = transfer->is_sent = false;
  transfer->placed = transfer->landed = transfer->parts = 0;
  transfer->peer = peer;
  transfer->tag = tag;
  transfer->key = key;
  transfer->verdict = 0;
  transfer->may_view = transfer->is_lent = transfer->writes = false;
  transfer->view = nullptr;
  transfer->source = nullptr;
  transfer->target = nullptr;
  transfer->bytes = bytes;
  transfer->owner = this;
  return transfer;
}

UcxTransfer* UcxTransport::find(Ticket ticket) {
  const auto index = static_cast<uint32_t>(ticket);
  UcxTransfer* transfer = index == 0 ? nullptr : transfers_.at(index - 1);
  const bool is_it = transfer && transfer->stage != Stage::unused && transfer->ticket() == ticket;
  return is_it ? transfer : nullptr;
}

TransferState UcxTransport::test(Ticket ticket, uint32_t* verdict) {
  UcxTransfer* transfer = find(ticket);
  if (!transfer) return TransferState::failed;
  if (!transfer->over()) return TransferState::pending;
  if (transfer->stage == Stage::lent) return TransferState::done;
  const bool done = transfer->stage == Stage::done;
  if (done && !transfer->is_send && verdict) *verdict |= transfer->verdict;
  if (!transfer->is_send && transfer->verdict != 0) std::erase(vetoed_, transfer);
  if (done && transfer->view) {
    transfer->stage = Stage::lent;
    return TransferState::done;
  }
  --open_transfers_;
  transfer->stage = Stage::unused;
  transfers_.give_back(transfer);
  return done ? TransferState::done : TransferState::failed;
}

void UcxTransport::cancel(Ticket ticket) {
  UcxTransfer* transfer = find(ticket);
  if (!transfer || transfer->over()) return;
  Peer& peer = peer_at(transfer->peer);
  if (transfer->stage == Stage::queued) {
    peer.sends.remove(transfer);
    transfer->stage = Stage::failed;
  } else if (transfer->stage == Stage::posted) {
    posted_.remove(transfer);
    transfer->stage = Stage::failed;
  } else if (transfer->is_send && transfer->is_rendezvous && !transfer->doomed &&
             !transfer->awaits_answer) {
    // The message is already announced, so the sender asks the receiver to give it up.
    transfer->awaits_answer = true;
    tell(peer, {.type = Type::withdraw, .tag = transfer->tag, .ticket = transfer->ticket()});
  }
  // Any other transfer is already on its way and will end soon.
}

// --- sending ------------------------------------------------------------------------------------

Ticket UcxTransport::isend(int to, const MessageHeader& header, std::span<const std::byte> bytes) {
  Peer& peer = peer_at(to);
  UcxTransfer* send = make_transfer(to, header.tag, header.key, true, bytes.size());
  const Ticket ticket = send->ticket();
  if (!peer.open || aborted_) return ticket;
  send->source = bytes.data();
  send->header = {.from = static_cast<uint32_t>(rank_),
                  .key = header.key,
                  .verdict = header.verdict,
                  .length = bytes.size(),
                  .tag = header.tag,
                  .ticket = ticket,
                  .address = header.place};
  if (header.place != 0)
    send->header.loan = UcxLoan::written;
  else if (header.is_lent)
    send->header.loan = UcxLoan::lent;
  if (peer.sends.empty() && try_send(peer, send)) return ticket;
  send->stage = Stage::queued;
  peer.sends.push(send);
  return ticket;
}

// Sends the message if possible. Returns false if it must wait for its turn.
bool UcxTransport::try_send(Peer& peer, UcxTransfer* send) {
  const uint64_t cost = eager_cost(send->bytes);
  const bool is_eager = send->bytes <= kMostEager && cost <= peer.credit;
  if (!is_eager && peer.announced >= kMostAnnounced) return false;
  ++counters_.messages_sent;
  counters_.bytes_sent += send->bytes;
  send->stage = Stage::running;
  send->is_rendezvous = !is_eager;
  if (!is_eager) ++peer.announced;
  if (!is_eager && peer.sign) {
    counters_.bytes_to_peer[static_cast<size_t>(peer.rank)] += send->bytes;
    send->is_put = true;
    send->header.type = Type::announce;
    std::string key;
    if (send->header.loan != UcxLoan::written) {
      send->header.region = region_for(peer, {send->source, send->bytes}, key);
      send->header.address = reinterpret_cast<uintptr_t>(send->source);
    }
    tell(peer, send->header, key);
    return true;
  }
  const void* source = send->source;
  size_t bytes = send->bytes;
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                     UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  how.memory_type = UCS_MEMORY_TYPE_HOST;
  how.cb.send = sent;
  how.user_data = send;
  if (is_eager) {
    peer.credit -= cost;
    send->header.type = Type::eager;
    how.flags = UCP_AM_SEND_FLAG_EAGER;
  } else {
    send->header.type = Type::rendezvous;
    how.flags = UCP_AM_SEND_FLAG_RNDV;
    if (bytes == 0) {
      // A rendezvous needs at least one byte, so an empty message sends a byte of its header.
      source = &send->header;
      bytes = 1;
    }
  }
  counters_.bytes_to_peer[static_cast<size_t>(peer.rank)] += send->bytes + sizeof send->header;
  ++peer.transfers;
  void* request = ucp_am_send_nbx(peer.endpoint, kMessageId, &send->header, sizeof send->header,
                                  source, bytes, &how);
  // isend() only posts. So if a send completes immediately, the next progress() sets its result.
  if (!UCS_PTR_IS_PTR(request)) through_.emplace_back(send, UCS_PTR_RAW_STATUS(request));
  return true;
}

void UcxTransport::flush_sends(Peer& peer) {
  while (peer.open && !aborted_) {
    UcxTransfer* send = peer.sends.front();
    if (!send || !try_send(peer, send)) return;
  }
}

void UcxTransport::sent(void* request, ucs_status_t status, void* transfer) {
  ucp_request_free(request);
  auto* send = static_cast<UcxTransfer*>(transfer);
  UcxTransport& self = *send->owner;
  Peer& peer = self.peer_at(send->peer);
  self.transfer_ran(send, status);
  self.flush_sends(peer);
}

void UcxTransport::received(void* request, ucs_status_t status, size_t, void* transfer) {
  ucp_request_free(request);
  auto* receive = static_cast<UcxTransfer*>(transfer);
  receive->owner->transfer_ran(receive, status);
}

// Called when UCX is done with the transfer's memory.
void UcxTransport::transfer_ran(UcxTransfer* transfer, ucs_status_t status) {
  Peer& peer = peer_at(transfer->peer);
  --peer.transfers;
  if (transfer->is_send && transfer->is_rendezvous) --peer.announced;
  settle(transfer, status == UCS_OK);
}

// Sets the result of a transfer when its memory is no longer used.
void UcxTransport::settle(UcxTransfer* transfer, bool went_well) {
  const bool is_good = went_well && !transfer->doomed;
  if (!transfer->awaits_answer || !is_good)
    transfer->stage = is_good ? Stage::done : Stage::failed;
  else
    transfer->is_sent = true;
}

// --- receiving ----------------------------------------------------------------------------------

Ticket UcxTransport::irecv(int from, uint64_t tag, uint32_t key, std::span<std::byte> bytes) {
  return receive(from, tag, key, bytes, false);
}

Ticket UcxTransport::irecv_view(int from, uint64_t tag, uint32_t key, std::span<std::byte> bytes) {
  return receive(from, tag, key, bytes, true);
}

Ticket UcxTransport::receive(int from, uint64_t tag, uint32_t key, std::span<std::byte> bytes,
                             bool may_view) {
  Peer& peer = peer_at(from);
  UcxTransfer* receive = make_transfer(from, tag, key, false, bytes.size());
  receive->may_view = may_view;
  receive->target = bytes.data();
  const Ticket ticket = receive->ticket();
  if (aborted_) return ticket;
  UcxArrival* arrival = arrivals_.find(from, tag, key);
  if (!arrival) {
    if (!peer.open) return ticket;
    receive->stage = Stage::posted;
    posted_.add(receive);
    return ticket;
  }
  receive->verdict = arrival->verdict;
  if (receive->verdict != 0) vetoed_.push_back(receive);
  const bool fits = receive->bytes == arrival->bytes;
  if (fits && receive->bytes > 0 && arrival->descriptor) {
    receive_rendezvous(receive, std::exchange(arrival->descriptor, nullptr));
  } else if (fits && receive->bytes > 0 && arrival->is_put) {
    arrival->ticket = 0;
    receive_announced(receive, arrival->header);
  } else {
    if (fits && receive->bytes > 0) std::memcpy(receive->target, arrival->buffer, receive->bytes);
    receive->stage = fits ? Stage::done : Stage::failed;
  }
  forget_arrival(arrival);
  return ticket;
}

void UcxTransport::receive_rendezvous(UcxTransfer* receive, void* descriptor) {
  ucp_request_param_t how{};
  how.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  how.memory_type = UCS_MEMORY_TYPE_HOST;
  how.cb.recv_am = received;
  how.user_data = receive;
  receive->stage = Stage::running;
  ++peer_at(receive->peer).transfers;
  void* request =
      ucp_am_recv_data_nbx(worker_.get(), descriptor, receive->target, receive->bytes, &how);
  if (!UCS_PTR_IS_PTR(request)) transfer_ran(receive, UCS_PTR_RAW_STATUS(request));
}

// Frees an arrival and notifies its sender. The message has been received or refused.
void UcxTransport::forget_arrival(UcxArrival* arrival) {
  arrivals_.remove(arrival);
  if (arrival->verdict != 0) --vetoes_here_;
  if (arrival->is_rendezvous) {
    if (arrival->is_put && arrival->ticket != 0 && peer_at(arrival->peer).open)
      tell(peer_at(arrival->peer), {.type = Type::taken, .ticket = arrival->ticket});
    if (arrival->descriptor) ucp_am_data_release(worker_.get(), arrival->descriptor);
  } else {
    buffers_.give_back(arrival->buffer, arrival->bytes);
    return_credit(peer_at(arrival->peer), eager_cost(arrival->bytes));
  }
  arrival_nodes_.give_back(arrival);
}

void UcxTransport::return_credit(Peer& peer, uint64_t cost) {
  peer.held -= cost;
  peer.owed += cost;
  if (peer.owed >= credit_ / 2 && peer.open)
    tell(peer, {.type = Type::credit, .length = std::exchange(peer.owed, 0)});
}

void UcxTransport::discard(uint64_t first, uint64_t last) {
  arrivals_.for_each([&](UcxArrival* arrival) {
    if (arrival->tag >= first && arrival->tag <= last) forget_arrival(arrival);
  });
  discarded_.insert(first, last);
}

bool UcxTransport::has_veto(uint64_t tag) const {
  for (const UcxTransfer* receive : vetoed_)
    if (receive->tag == tag) return true;
  return vetoes_here_ > 0 &&
         arrivals_.any(tag, [](const UcxArrival& arrival) { return arrival.verdict != 0; });
}

// --- control messages and events ----------------------------------------------------------------

void UcxTransport::post(int to, std::span<const std::byte> message) {
  TUTTI_CHECK(message.size() <= kMaxControlBytes);
  Peer& peer = peer_at(to);
  if (!peer.open || aborted_) return;
  last_talk_ = Clock::now();
  if (peer.control_queued + message.size() > kMostQueuedControl)
    return lose(peer, "it does not take its control messages");
  UcxNote* note = notes_.take();
  note->header = {.type = Type::control, .length = message.size()};
  note->bytes.assign(message.begin(), message.end());
  peer.control_queued += control_cost(message.size());
  peer.controls.push(note);
  flush_controls(peer);
}

void UcxTransport::flush_controls(Peer& peer) {
  while (UcxNote* note = peer.controls.front()) {
    const uint64_t cost = control_cost(note->bytes.size());
    if (peer.control_in_flight + cost > kControlWindow) return;
    peer.control_in_flight += cost;
    peer.control_queued -= cost;
    peer.controls.remove(note);
    send_note(peer, note);
  }
}

// Sends a message of the protocol itself.
void UcxTransport::tell(Peer& peer, const UcxHeader& header, std::string_view bytes) {
  UcxNote* note = notes_.take();
  note->header = header;
  const auto payload = std::as_bytes(std::span(bytes));
  note->bytes.assign(payload.begin(), payload.end());
  send_note(peer, note);
}

void UcxTransport::send_note(Peer& peer, UcxNote* note) {
  if (!peer.endpoint) return notes_.give_back(note);
  note->owner = this;
  note->peer = peer.rank;
  note->header.from = static_cast<uint32_t>(rank_);
  const size_t bytes = note->bytes.size() + sizeof note->header;
  ++counters_.control_messages_sent;
  counters_.control_bytes_sent += bytes;
  counters_.bytes_to_peer[static_cast<size_t>(peer.rank)] += bytes;
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                     UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  how.memory_type = UCS_MEMORY_TYPE_HOST;
  how.flags = UCP_AM_SEND_FLAG_EAGER;
  // The two endpoints of a pair learn of each other only through a message that asks for a reply.
  // In UCX 1.13 neither of them may be closed before that.
  if (note->header.type == Type::hello) how.flags |= UCP_AM_SEND_FLAG_REPLY;
  how.cb.send = note_sent;
  how.user_data = note;
  ++peer.notes;
  void* request = ucp_am_send_nbx(peer.endpoint, kMessageId, &note->header, sizeof note->header,
                                  note->bytes.data(), note->bytes.size(), &how);
  // The endpoint's error handler reports a failure of this message.
  if (!UCS_PTR_IS_PTR(request)) note_ran(note);
}

void UcxTransport::note_sent(void* request, ucs_status_t, void* note) {
  ucp_request_free(request);
  static_cast<UcxNote*>(note)->owner->note_ran(static_cast<UcxNote*>(note));
}

void UcxTransport::note_ran(UcxNote* note) {
  Peer& peer = peer_at(note->peer);
  --peer.notes;
  if (peer.closes) has_ends_ = true;
  if (note->bytes.capacity() > kMostSpareBytes) std::vector<std::byte>().swap(note->bytes);
  notes_.give_back(note);
}

bool UcxTransport::take(int& peer, std::vector<std::byte>& message) {
  if (inbox_.empty()) return false;
  auto& oldest = inbox_.front();
  peer = oldest.peer;
  message.swap(oldest.bytes);
  inbox_.pop_front();
  Peer& from = peer_at(peer);
  from.control_owed += control_cost(message.size());
  if (from.control_owed >= kControlWindow / 4 && from.open)
    tell(from, {.type = Type::credit, .ticket = std::exchange(from.control_owed, 0)});
  return true;
}

std::optional<PeerEvent> UcxTransport::take_event() {
  if (events_.empty()) return {};
  auto event = std::move(events_.front());
  events_.pop_front();
  return event;
}

std::string_view UcxTransport::route(int peer) const {
  if (peer == rank_) return "self";
  return peers_.at(static_cast<size_t>(peer))->route;
}

}  // namespace tutti
