#include <algorithm>

#include "tutti/backends/backend.h"
#include "tutti/backends/stream/stream_transport.h"
#include "tutti/base/deadline.h"

// How a StreamTransport moves, sleeps and ends; see stream_transport.cc for what the messages mean.

namespace tutti {

using Stage = Transfer::Stage;

// Between two looks whether the last bytes have arrived, which wakes no sleeper.
constexpr double kDeliveryLook = 0.002;  // seconds

bool StreamTransport::progress() {
  if (!aborted_ && abort_asked_.load(std::memory_order_acquire)) {
    handle_abort();
    return true;
  }
  bool moved = false;
  for (const auto& peer : peers_)
    if (peer && peer->channel) moved |= aborted_ ? drain(*peer) : pump(*peer);
  return moved;
}

// Writes and reads what one peer's channel lets through.
bool StreamTransport::pump(Peer& peer) {
  bool moved = false;
  std::string broken;
  try {
    moved = peer.outlet.flush(*peer.channel);
  } catch (const std::exception& error) {
    // What the peer said before its end, above all a goodbye, may still be here to be read.
    broken = error.what();
  }
  try {
    moved |= peer.inlet.pump(peer.rank, *peer.channel, *this);
  } catch (const std::exception& error) {
    if (broken.empty()) broken = error.what();
  }
  if (peer.said_goodbye || !broken.empty()) {
    lose(peer, broken);
    return true;
  }
  return moved;
}

// After an abort nothing is understood any more; but bytes that come are taken, so that no thread
// wakes for them again and again, and so that ends are seen.
bool StreamTransport::drain(Peer& peer) {
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

void StreamTransport::lose(Peer& peer, const std::string& detail) {
  const auto kind = peer.said_goodbye ? PeerEvent::Kind::left : PeerEvent::Kind::lost;
  events_.push_back({peer.rank, kind, peer.said_goodbye ? "it said goodbye" : detail});
  peer.channel.reset();
  fail_all(peer.rank);
}

// Everything that is pending with one peer. What has arrived whole can still be received.
void StreamTransport::fail_all(int rank) {
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

void StreamTransport::abort(const Error&) noexcept {
  abort_asked_.store(true, std::memory_order_release);
  abort_bell_.ring();
}

void StreamTransport::handle_abort() {
  aborted_ = true;
  abort_bell_.silence();
  for (const auto& peer : peers_)
    if (peer) fail_all(peer->rank);
}

bool StreamTransport::arm() {
  if (!aborted_ && abort_asked_.load(std::memory_order_acquire)) return false;
  for (const auto& peer : peers_) {
    if (!peer || !peer->channel) continue;
    if (!aborted_ && peer->inlet.has_more()) return false;
    try {
      if (!peer->channel->arm(!aborted_ && peer->outlet.wants_write())) return false;
    } catch (const std::exception&) {
      // progress() meets the same error and knows what to do with it.
      return false;
    }
  }
  return true;
}

void StreamTransport::goodbye(double seconds) noexcept {
  try {
    const auto deadline = Deadline::after(seconds);
    for (const auto& peer : peers_)
      if (peer && peer->channel && !aborted_) peer->outlet.leave();
    while (true) {
      const bool moved = progress();
      bool flushed = true, delivered = true;
      for (const auto& peer : peers_) {
        if (!peer || !peer->channel) continue;
        flushed = flushed && !peer->outlet.wants_write();
        // A peer that said goodbye itself wants no more of ours.
        delivered = delivered && (peer->said_goodbye || peer->channel->delivered());
      }
      if (aborted_ || (flushed && delivered) || deadline.passed()) return;
      // A connection that ends with bytes of the peer unread is reset, and what is still on its way
      // to that peer is lost with it: so this rank reads on until its goodbyes have arrived.
      const auto next_look = flushed ? Deadline::after(kDeliveryLook) : deadline;
      if (!moved && arm()) poller_.wait(next_look.poll_milliseconds());
    }
  } catch (const std::exception&) {
    // A peer that was not told sees the end of the connection instead.
  }
}

std::unique_ptr<Transport> make_stream_transport(int rank,
                                                 std::vector<std::unique_ptr<Channel>> channels) {
  return std::make_unique<StreamTransport>(rank, std::move(channels));
}

}  // namespace tutti
