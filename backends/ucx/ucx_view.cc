#include <utility>

#include "tutti/backends/ucx/limits.h"
#include "tutti/backends/ucx/ucx_transport.h"

// Messages that the receiver reads in the sender's memory, in a region that both have mapped. A
// receiver that has finished reading sends `taken`, as for a message that it refuses.

namespace tutti {

using Stage = UcxTransfer::Stage;
using Type = UcxMessageType;

// Returns the id of the region that holds these bytes, or 0 if the peer may not attach it. Sets
// `key` if the region is new to the peer.
uint32_t UcxTransport::region_for(Peer& peer, std::span<const std::byte> bytes, std::string& key) {
  const uint32_t region = bytes.empty() ? 0 : memory_->find(bytes);
  if (region == 0 || peer.told.count(region) != 0) return region;
  if (peer.told.size() >= kMostAttached) return 0;
  key = memory_->key(region);
  if (key.empty()) return 0;
  peer.told.insert(region);
  return region;
}

// Receives a message whose bytes are at the sender, or have already been written into this rank's
// memory.
void UcxTransport::receive_announced(UcxTransfer* receive, const UcxHeader& header) {
  const bool is_here = header.loan == UcxLoan::written &&
                       header.address == reinterpret_cast<uintptr_t>(receive->target);
  if (is_here) {
    tell(peer_at(receive->peer), {.type = Type::taken, .ticket = header.ticket});
    receive->stage = Stage::done;
  } else if (!show(receive, header)) {
    receive_put(receive, header.ticket);
  }
}

// Gives the receive a view of the sender's memory. Returns false if the message must be put.
bool UcxTransport::show(UcxTransfer* receive, const UcxHeader& header) {
  Peer& peer = peer_at(receive->peer);
  const auto key = peer.keys.find(header.region);
  void* here = nullptr;
  if (!receive->may_view || header.region == 0 || key == peer.keys.end() ||
      ucp_rkey_ptr(key->second, header.address, &here) != UCS_OK)
    return false;
  receive->view = static_cast<const std::byte*>(here);
  receive->remote = header.ticket;
  receive->place = header.address;
  receive->is_lent = header.loan == UcxLoan::lent;
  receive->stage = Stage::done;
  ++peer.views;
  return true;
}

const std::byte* UcxTransport::view(Ticket ticket) {
  const UcxTransfer* receive = find(ticket);
  return receive && receive->stage == Stage::lent ? receive->view : nullptr;
}

// Returns the memory that this rank may overwrite, or nothing. First announces that this rank
// writes, and then checks whether it still may; see UcxSign.
Loan UcxTransport::loan(Ticket ticket) {
  UcxTransfer* receive = find(ticket);
  if (!receive || receive->stage != Stage::lent || !receive->is_lent || aborted_) return {};
  const Peer& peer = peer_at(receive->peer);
  auto& writes = sign_for(peer.rank).writes;
  if (!receive->writes) writes.fetch_add(1);
  receive->writes = peer.open && peer.sign && !peer.sign->has_given_up.load();
  if (receive->writes) return {const_cast<std::byte*>(receive->view), receive->place};
  writes.fetch_sub(1);
  return {};
}

// Ends a view. Returns whether the memory was valid until now. A sender that gives up publishes
// that in its sign before it takes back the memory. The memory stays mapped until the last view
// ends.
bool UcxTransport::give_back(Ticket ticket) {
  UcxTransfer* receive = find(ticket);
  if (!receive || receive->stage != Stage::lent) return false;
  Peer& peer = peer_at(receive->peer);
  if (receive->writes) sign_for(peer.rank).writes.fetch_sub(1);
  const bool was_there = peer.open && !aborted_ && peer.sign && !peer.sign->has_given_up.load();
  if (peer.open) tell(peer, {.type = Type::taken, .ticket = receive->remote});
  --open_transfers_;
  receive->stage = Stage::unused;
  transfers_.give_back(receive);
  if (--peer.views == 0) drop_old_keys(peer);
  return was_there;
}

void UcxTransport::drop_key(Peer& peer, ucp_rkey_h key) {
  if (peer.views == 0)
    ucp_rkey_destroy(key);
  else
    peer.old_keys.push_back(key);
}

void UcxTransport::drop_old_keys(Peer& peer) {
  for (const auto key : std::exchange(peer.old_keys, {})) ucp_rkey_destroy(key);
}

}  // namespace tutti
