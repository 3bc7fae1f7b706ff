#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <type_traits>
#include <vector>

#include "tutti/collectives/transport.h"

namespace tutti {

/// Sends messages of one small type to other ranks, at any time. All of them have one tag, which no
/// operation has. Messages to one peer stay in order. The user of the class must bound the number
/// of messages that wait to be sent. Backends do so: the number of running operations is bounded,
/// and they send a fixed number of messages per operation.
///
/// Nothing may be called after the transport's goodbye(). The object must outlive the transport's
/// last progress(). Only the thread that drives the engine uses it.
template <class Message>
class MessageLinks {
  static_assert(std::is_trivially_copyable_v<Message>, "its bytes are what is sent");

 public:
  /// `tag` is above all tags of operations and equal on all ranks.
  MessageLinks(Transport& transport, uint64_t tag)
      : transport_(transport), tag_(tag), links_(static_cast<size_t>(transport.size())) {}
  MessageLinks(const MessageLinks&) = delete;
  MessageLinks& operator=(const MessageLinks&) = delete;

  /// Receives messages of this peer from now on. The peer must open() its link to this rank too.
  void open(int peer) { listen(peer); }

  /// Sends a message. Does nothing if the peer is gone or its link was not opened.
  void send(int peer, const Message& message) {
    auto& link = at(peer);
    if (link.ticket == 0) return;
    auto& out = link.outgoing.emplace_back(Outgoing{message, 0});
    out.ticket = transport_.isend(peer, {tag_, link.next_sent++, 0},
                                  std::as_bytes(std::span(&out.message, 1)));
  }

  /// Calls on_message(peer, message) for each message that has arrived. Returns true if a message
  /// has arrived or a peer is gone. on_message may call send().
  template <class OnMessage>
  bool progress(const OnMessage& on_message) {
    bool moved = false;
    for (int peer = 0; peer < static_cast<int>(links_.size()); ++peer) {
      auto& link = at(peer);
      while (!link.outgoing.empty() &&
             transport_.test(link.outgoing.front().ticket) != TransferState::pending)
        link.outgoing.pop_front();
      while (link.ticket != 0) {
        const auto state = transport_.test(link.ticket);
        if (state == TransferState::pending) break;
        moved = true;
        link.ticket = 0;
        if (state == TransferState::failed) {
          link.is_gone = has_lost_peer_ = true;
          break;
        }
        const Message message = link.message;
        listen(peer);
        on_message(peer, message);
      }
    }
    return moved;
  }

  /// Returns whether no message will come from this peer any more.
  bool is_gone(int peer) const { return links_[static_cast<size_t>(peer)].is_gone; }
  bool has_lost_peer() const { return has_lost_peer_; }

 private:
  struct Outgoing {
    Message message;
    Ticket ticket = 0;
  };
  struct Link {
    Message message;    // receives the next message
    Ticket ticket = 0;  // ticket of that receive; 0 if the link is not open or the peer is gone
    uint32_t next_sent = 0, next_received = 0;
    bool is_gone = false;
    std::deque<Outgoing> outgoing;  // kept until the transport has sent them
  };

  Link& at(int peer) { return links_[static_cast<size_t>(peer)]; }
  void listen(int peer) {
    auto& link = at(peer);
    link.ticket = transport_.irecv(peer, tag_, link.next_received++,
                                   std::as_writable_bytes(std::span(&link.message, 1)));
  }

  Transport& transport_;
  const uint64_t tag_;
  std::vector<Link> links_;
  bool has_lost_peer_ = false;
};

}  // namespace tutti
