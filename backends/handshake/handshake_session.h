#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "tutti/backends/handshake/admission.h"
#include "tutti/backends/handshake/handshake.h"
#include "tutti/backends/network/asio.h"
#include "tutti/base/deadline.h"

namespace tutti {

/// Called once: with the connection and the proved rank at its other end, or with the error and the
/// rank that the other side claimed to be (-1: none).
using HandshakeResult = std::function<void(std::exception_ptr error, tcp::socket socket, int peer)>;

/// Runs a handshake over a connected socket without blocking the io_context; at the deadline it
/// closes the connection with Error(timeout). Whatever the other side does, it costs one socket and
/// less than 1 KiB, until the deadline, or until the Stranger that is returned is dismissed: then
/// `result` is not called any more.
std::shared_ptr<Stranger> async_handshake(tcp::socket socket, Handshake handshake,
                                          Deadline deadline, HandshakeResult result);

/// Accepts connections for ever and lets in those that prove themselves. Of the others only so many
/// are there at once, and none for long (see Admission). Runs on the acceptor's io_context, kept
/// alive by its own work there until close().
class Gate : public std::enable_shared_from_this<Gate> {
 public:
  using Welcome = std::function<void(tcp::socket socket, int peer)>;
  using TurnAway = std::function<void(std::exception_ptr error, int claimed_peer)>;

  /// `keeper` is whose door it is, for the log ("rank 3"), in which those that were turned away are
  /// counted; `log` and `turn_away` may be empty. terms.peer_name is filled in for each connection.
  Gate(tcp::acceptor acceptor, HandshakeTerms terms, const std::string& keeper, LogSink log,
       Welcome welcome, TurnAway turn_away);
  void open();
  /// Neither function is called any more.
  void close();
  /// Tells the log of those that were turned away since its last line.
  void report() { admission_.tell(Clock::now()); }

 private:
  void accept();
  void greet(tcp::socket socket);
  void open_at(Clock::time_point when);
  void turn_away(const std::exception_ptr& error, int claimed_peer);

  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  const HandshakeTerms terms_;
  const Welcome welcome_;
  const TurnAway turn_away_;
  Admission admission_;
  bool waiting_ = false;
};

}  // namespace tutti
