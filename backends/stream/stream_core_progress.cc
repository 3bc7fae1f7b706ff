#include <exception>
#include <string>
#include <utility>

#include "tutti/backends/stream/stream_core.h"

// The functions of StreamCore that move bytes, prepare to sleep, abort and end. The functions that
// handle messages are in stream_core.cc.

namespace tutti {

using Stage = Transfer::Stage;

bool StreamCore::progress() {
  if (abort_asked_ && !aborted_) {
    fail_everything();
    return true;
  }
  bool moved = false;
  for (const auto& peer : peers_)
    if (peer && peer->channel) moved |= aborted_ ? drain(*peer) : pump(*peer);
  return moved;
}

// Writes the bytes that the peer's channel takes and reads the bytes that have arrived. Returns
// true if any moved.
bool StreamCore::pump(Peer& peer) {
  bool moved = false;
  std::string broken;
  try {
    moved = peer.outlet.flush(*peer.channel);
  } catch (const std::exception& error) {
    // Bytes that the peer sent before it ended may still wait to be read, for example its goodbye.
    broken = error.what();
  }
  try {
    bool has_read = false;
    do {
      moved |= has_read = peer.inlet.pump(peer.rank, *peer.channel, *this);
    } while (!broken.empty() && has_read && peer.inlet.has_more());
  } catch (const std::exception& error) {
    if (broken.empty()) broken = error.what();
  }
  if (peer.said_goodbye || !broken.empty()) {
    lose(peer, broken);
    return true;
  }
  return moved;
}

// After an abort the arriving bytes are read but ignored. If they stayed unread, they would wake a
// thread again and again, and the end of the peer would not be noticed.
bool StreamCore::drain(Peer& peer) {
  std::byte nothing[4096];
  try {
    bool moved = false;
    for (int i = 0; i < 256 && peer.channel->read(nothing) > 0; ++i) moved = true;
    return moved;
  } catch (const std::exception& error) {
    lose(peer, error.what());
    return true;
  }
}

void StreamCore::lose(Peer& peer, const std::string& detail) {
  const auto kind = peer.said_goodbye ? PeerEvent::Kind::left : PeerEvent::Kind::lost;
  events_.push_back({peer.rank, kind, peer.said_goodbye ? "it said goodbye" : detail});
  peer.channel.reset();
  fail_all(peer.rank);
}

// Fails everything that is pending with one peer. A message that has arrived completely can still
// be received.
void StreamCore::fail_all(int rank) {
  Peer& peer = peer_at(rank);
  peer.outlet.clear();
  peer.receive = nullptr;
  peer.arrival = nullptr;
  transfers_.for_each([&](Transfer& transfer) {
    if (transfer.peer != rank || transfer.stage == Stage::unused || transfer.over()) return;
    if (transfer.stage == Stage::posted) posted_.remove(&transfer);
    finish(&transfer, Stage::failed);
  });
  arrivals_.for_each([&](Arrival* arrival) {
    if (arrival->peer == rank && !arrival->complete) forget_arrival(arrival);
  });
  peer.announces_held = 0;
}

void StreamCore::fail_everything() {
  if (std::exchange(aborted_, true)) return;
  for (const auto& peer : peers_)
    if (peer) fail_all(peer->rank);
}

bool StreamCore::arm() {
  if (abort_asked_ && !aborted_) return false;
  for (const auto& peer : peers_) {
    if (!peer || !peer->channel) continue;
    if (!aborted_ && peer->inlet.has_more()) return false;
    try {
      if (!peer->channel->arm(!aborted_ && peer->outlet.wants_write())) return false;
    } catch (const std::exception&) {
      // progress() gets the same error and handles it.
      return false;
    }
  }
  return true;
}

// --- leaving ------------------------------------------------------------------------------------

void StreamCore::begin_goodbye() {
  for (const auto& peer : peers_)
    if (peer && peer->channel && !aborted_) peer->outlet.leave();
}

bool StreamCore::is_written() const {
  for (const auto& peer : peers_)
    if (peer && peer->channel && peer->outlet.wants_write()) return false;
  return true;
}

bool StreamCore::is_flushed() {
  if (aborted_) return true;
  if (!is_written()) return false;
  for (const auto& peer : peers_) {
    if (!peer || !peer->channel) continue;
    // A peer that has said goodbye needs no more data from this rank.
    if (!peer->said_goodbye && !peer->channel->delivered()) return false;
  }
  return true;
}

void StreamCore::goodbye(double) noexcept {
  try {
    begin_goodbye();
    progress();
  } catch (const std::exception&) {
    // If the goodbye cannot be sent, the peer sees the end of the connection instead.
  }
}

void StreamCore::watch_channels(Poller& poller) {
  for (const auto& peer : peers_)
    if (peer && peer->channel) peer->channel->watch(poller);
}

void StreamCore::end_channels() noexcept {
  for (const auto& peer : peers_)
    if (peer) peer->channel.reset();
}

}  // namespace tutti
