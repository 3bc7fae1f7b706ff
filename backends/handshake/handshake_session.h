#pragma once

#include <exception>
#include <functional>
#include <memory>

#include "tutti/backends/handshake/handshake.h"
#include "tutti/backends/network/asio.h"
#include "tutti/base/deadline.h"

namespace tutti {

/// Called once: with the connection and the proved rank at its other end, or with the error and the
/// rank that the other side claimed to be (-1: none).
using HandshakeResult = std::function<void(std::exception_ptr error, tcp::socket socket, int peer)>;

/// Runs a handshake over a connected socket without blocking the io_context; at the deadline it
/// closes the connection with Error(timeout). Whatever the other side does, it costs one socket and
/// less than 1 KiB, until the deadline.
void async_handshake(tcp::socket socket, Handshake handshake, Deadline deadline,
                     HandshakeResult result);

/// Accepts connections for ever and lets in those that prove themselves. Of the others at most
/// kMaxStrangers are there at once; further ones wait in the kernel's queue. Runs on the acceptor's
/// io_context, kept alive by its own work there until close().
class Gate : public std::enable_shared_from_this<Gate> {
 public:
  static constexpr int kMaxStrangers = 64;
  using Welcome = std::function<void(tcp::socket socket, int peer)>;
  using TurnAway = std::function<void(std::exception_ptr error, int claimed_peer)>;

  /// `turn_away` may be null. terms.peer_name is filled in for each connection.
  Gate(tcp::acceptor acceptor, HandshakeTerms terms, Welcome welcome, TurnAway turn_away);
  void open();
  /// Neither function is called any more.
  void close();

 private:
  void accept();
  void greet(tcp::socket socket);

  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  const HandshakeTerms terms_;
  const Welcome welcome_;
  const TurnAway turn_away_;
  int strangers_ = 0;
  bool waiting_ = false;
};

}  // namespace tutti
