#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "tutti/backends/ucx/limits.h"
#include "tutti/backends/ucx/ucx_transport.h"

// Messages whose bytes the sender puts into the receiver's memory. The sender announces a message,
// the receiver gives memory for its parts, and the sender reports each part that has landed. The
// memory is the target of the receive if that is mapped. Otherwise it is a slot.

namespace tutti {

using Stage = UcxTransfer::Stage;
using Type = UcxMessageType;

namespace {

size_t part_bytes(const UcxTransfer& receive, size_t begin) {
  return std::min(receive.region == 0 ? kSlotBytes : kPartBytes, receive.bytes - begin);
}

uint64_t address_of(const std::byte* data) { return reinterpret_cast<uintptr_t>(data); }

}  // namespace

// --- regions ------------------------------------------------------------------------------------

// Allocates one UcxSign per peer, and the slots behind the signs. The sign for a peer shows the
// peer when it must stop putting. It also shows when the bytes that the peer reads in this rank's
// memory have become invalid.
void UcxTransport::make_slots(int peers) {
  const auto signs = static_cast<size_t>(peers) * sizeof(UcxSign);
  const size_t before = (signs + Region::kAlignment - 1) / Region::kAlignment * Region::kAlignment;
  slots_ = memory_->allocate(before + kSlots * kSlotBytes);
  for (int peer = 0; peer < peers; ++peer)
    new (slots_->data() + static_cast<size_t>(peer) * sizeof(UcxSign)) UcxSign;
  first_slot_ = slots_->data() + before;
  slots_region_ = memory_->find({slots_->data(), slots_->bytes()});
  for (uint32_t slot = 0; slot < kSlots; ++slot) free_slots_.push_back(slot);
}

UcxSign& UcxTransport::sign_for(int peer) const {
  return std::launder(reinterpret_cast<UcxSign*>(slots_->data()))[peer];
}

void UcxTransport::give_up_all() {
  for (int peer = 0; peer < size(); ++peer) sign_for(peer).has_given_up.store(true);
}

// Sends the first message to a peer. The message says whether the peer can put into this rank's
// memory.
void UcxTransport::offer_memory(Peer& peer) {
  const auto key = slots_region_ == 0 ? std::string() : memory_->key(slots_region_);
  if (!key.empty()) peer.told.insert(slots_region_);
  peer.was_offered = true;
  const auto* sign = reinterpret_cast<const std::byte*>(&sign_for(peer.rank));
  tell(peer, {.type = Type::hello, .key = slots_region_, .address = address_of(sign)}, key);
}

void UcxTransport::hello_came(Peer& peer, const UcxHeader& message, const std::byte* key,
                              size_t bytes) {
  peer.said_hello = true;
  if (bytes > 0 && attach(peer, message.key, key, bytes) == UCS_OK) {
    void* here = nullptr;
    if (ucp_rkey_ptr(peer.keys.at(message.key), message.address, &here) == UCS_OK)
      peer.sign = static_cast<const UcxSign*>(here);
    else
      detach(peer, message.key);
  }
  tell(peer, {.type = Type::attached});
}

ucs_status_t UcxTransport::attach(Peer& peer, uint32_t region, const std::byte* key, size_t bytes) {
  if (!peer.endpoint || peer.keys.size() > kMostAttached || peer.keys.count(region) != 0)
    return UCS_ERR_INVALID_PARAM;
  ucp_rkey_h remote = nullptr;
  const std::string_view text(reinterpret_cast<const char*>(key), bytes);
  const auto status = UcxMemory::attach(peer.endpoint, text, remote);
  if (status == UCS_OK) peer.keys.emplace(region, remote);
  return status;
}

// Attaches the remote key that came with a message, if any. Returns false if the peer is broken.
//
// Two cases are not failures. If the peer has given up, its memory may be gone, perhaps only since
// the check; that memory is not used any more. If the endpoint is closed, this rank has aborted,
// and the peer may still send because it does not know that yet.
bool UcxTransport::take_key(Peer& peer, uint32_t region, const std::byte* key, size_t bytes) {
  const auto has_given_up = [&] { return peer.sign && peer.sign->has_given_up.load(); };
  if (bytes == 0 || !peer.endpoint || has_given_up()) return true;
  const auto status = attach(peer, region, key, bytes);
  if (status == UCS_OK || has_given_up()) return true;
  peer.broken = fmt::format("UCX cannot attach its memory: {}", ucs_status_string(status));
  has_ends_ = true;
  return false;
}

void UcxTransport::detach(Peer& peer, uint32_t region) {
  const auto key = peer.keys.find(region);
  if (key == peer.keys.end()) return;
  drop_key(peer, key->second);
  peer.keys.erase(key);
}

void UcxTransport::detach_all(Peer& peer) {
  for (const auto& [region, key] : peer.keys) drop_key(peer, key);
  peer.keys.clear();
  peer.sign = nullptr;
}

void UcxTransport::forget_freed_regions() {
  for (const auto region : memory_->take_freed())
    for (const auto& peer : peers_)
      if (peer && peer->told.erase(region) != 0 && peer->open)
        tell(*peer, {.type = Type::forget, .key = region});
}

// --- receiving ----------------------------------------------------------------------------------

void UcxTransport::receive_put(UcxTransfer* receive, uint64_t ticket) {
  Peer& peer = peer_at(receive->peer);
  receive->stage = Stage::running;
  receive->is_put = true;
  receive->remote = ticket;
  receive->region = memory_->find({receive->target, receive->bytes});
  if (peer.told.count(receive->region) == 0 && peer.told.size() >= kMostAttached)
    receive->region = 0;
  ++peer.transfers;
  give_places(receive);
}

void UcxTransport::give_places(UcxTransfer* receive) {
  Peer& peer = peer_at(receive->peer);
  while (receive->parts < kMostParts && receive->placed < receive->bytes && !receive->doomed) {
    UcxHeader place{.type = Type::place,
                    .key = receive->region,
                    .length = part_bytes(*receive, receive->placed),
                    .tag = receive->ticket(),
                    .ticket = receive->remote,
                    .address = address_of(receive->target) + receive->placed};
    if (receive->region == 0) {
      if (free_slots_.empty()) {
        if (!std::exchange(receive->is_starved, true)) starved_.push(receive);
        return;
      }
      const uint32_t slot = free_slots_.back();
      free_slots_.pop_back();
      receive->slots[receive->parts] = slot;
      place.key = slots_region_;
      place.address = address_of(first_slot_) + slot * kSlotBytes;
    }
    receive->placed += place.length;
    ++receive->parts;
    const bool is_new = peer.told.insert(place.key).second;
    tell(peer, place, is_new ? memory_->key(place.key) : std::string());
  }
}

void UcxTransport::landed_came(Peer& peer, const UcxHeader& message) {
  UcxTransfer* receive = find(message.ticket);
  if (!receive || receive->is_send || receive->peer != peer.rank || receive->parts == 0) return;
  const bool is_there = message.length == part_bytes(*receive, receive->landed);
  if (!is_there) receive->doomed = true;
  --receive->parts;
  if (receive->region == 0) {
    const uint32_t slot = receive->slots[0];
    std::shift_left(receive->slots.begin(), receive->slots.end(), 1);
    if (!receive->doomed)
      std::memcpy(receive->target + receive->landed, first_slot_ + slot * kSlotBytes,
                  message.length);
    free_slot(slot);
  }
  receive->landed += message.length;
  if (receive->landed == receive->bytes || (receive->doomed && receive->parts == 0))
    end_put_receive(receive, UCS_OK);
  else if (!receive->is_starved)
    give_places(receive);
}

void UcxTransport::end_put_receive(UcxTransfer* receive, ucs_status_t status) {
  if (std::exchange(receive->is_starved, false)) starved_.remove(receive);
  const auto parts = std::exchange(receive->parts, 0);
  for (uint32_t part = 0; receive->region == 0 && part < parts; ++part)
    free_slot(receive->slots[part]);
  transfer_ran(receive, status);
}

void UcxTransport::free_slot(uint32_t slot) {
  free_slots_.push_back(slot);
  while (!free_slots_.empty() && !starved_.empty()) {
    UcxTransfer* receive = starved_.pop();
    receive->is_starved = false;
    give_places(receive);
  }
}

// Ends the receives that peers put into, without waiting for any peer.
void UcxTransport::give_up_places() {
  transfers_.for_each([&](UcxTransfer& transfer) {
    if (transfer.stage == Stage::running && transfer.is_put && !transfer.is_send)
      end_put_receive(&transfer, UCS_ERR_CANCELED);
  });
}

// --- sending ------------------------------------------------------------------------------------

void UcxTransport::place_came(Peer& peer, const UcxHeader& message, const std::byte* key,
                              size_t bytes) {
  if (!take_key(peer, message.key, key, bytes)) return;
  UcxTransfer* send = find(message.ticket);
  const auto remote = peer.keys.find(message.key);
  const bool is_wanted = send && send->is_send && send->is_put && send->peer == peer.rank &&
                         send->stage == Stage::running && !send->doomed && !aborted_ && peer.sign &&
                         !peer.sign->has_given_up.load() &&
                         message.length <= send->bytes - send->placed && remote != peer.keys.end();
  if (!is_wanted) return tell(peer, {.type = Type::landed, .ticket = message.tag});
  UcxNote* note = notes_.take();
  note->header = {.type = Type::landed, .length = message.length, .ticket = message.tag};
  note->bytes.clear();
  note->put = send;
  note->owner = this;
  const std::byte* source = send->source + send->placed;
  send->placed += message.length;
  ++send->parts;
  ++peer.transfers;
  ucp_request_param_t how{};
  how.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  how.memory_type = UCS_MEMORY_TYPE_HOST;
  how.cb.send = put_ran;
  how.user_data = note;
  void* request =
      ucp_put_nbx(peer.endpoint, source, message.length, message.address, remote->second, &how);
  if (!UCS_PTR_IS_PTR(request)) flush_put(note, UCS_PTR_RAW_STATUS(request));
}

void UcxTransport::put_ran(void* request, ucs_status_t status, void* note) {
  ucp_request_free(request);
  static_cast<UcxNote*>(note)->owner->flush_put(static_cast<UcxNote*>(note), status);
}

// When a put completes, its bytes have only left this rank. The flush reports that they have
// arrived.
void UcxTransport::flush_put(UcxNote* note, ucs_status_t status) {
  Peer& peer = peer_at(note->put->peer);
  if (status != UCS_OK || !peer.endpoint) return end_part(note, UCS_ERR_CANCELED);
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  how.cb.send = put_flushed;
  how.user_data = note;
  void* request = ucp_ep_flush_nbx(peer.endpoint, &how);
  if (!UCS_PTR_IS_PTR(request)) end_part(note, UCS_PTR_RAW_STATUS(request));
}

void UcxTransport::put_flushed(void* request, ucs_status_t status, void* note) {
  ucp_request_free(request);
  static_cast<UcxNote*>(note)->owner->end_part(static_cast<UcxNote*>(note), status);
}

void UcxTransport::end_part(UcxNote* note, ucs_status_t status) {
  UcxTransfer* send = std::exchange(note->put, nullptr);
  Peer& peer = peer_at(send->peer);
  --peer.transfers;
  --send->parts;
  send->landed += note->header.length;
  if (status == UCS_OK) {
    send_note(peer, note);
  } else {
    send->doomed = true;
    notes_.give_back(note);
  }
  if (send->parts == 0 && (send->doomed || send->landed == send->bytes)) end_put_send(send, true);
}

void UcxTransport::taken_came(Peer& peer, const UcxHeader& message) {
  UcxTransfer* send = find(message.ticket);
  if (send && send->is_send && send->is_put && send->peer == peer.rank &&
      send->stage == Stage::running && send->placed == 0 && !send->is_sent)
    end_put_send(send, true);
}

void UcxTransport::end_put_send(UcxTransfer* send, bool is_good) {
  Peer& peer = peer_at(send->peer);
  --peer.announced;
  settle(send, is_good);
  flush_sends(peer);
}

// Fails a message whose bytes the sender puts, because the peer is gone or everything is given up.
// If an open peer may still put parts of the message, the receive ends only after those parts.
void UcxTransport::fail_put(Peer& peer, UcxTransfer& transfer) {
  transfer.doomed = true;
  transfer.awaits_answer = false;
  if (transfer.is_send) {
    if (transfer.parts == 0) transfer.stage = Stage::failed;
  } else if (!peer.open || transfer.parts == 0) {
    end_put_receive(&transfer, UCS_ERR_CANCELED);
  }
}

}  // namespace tutti
