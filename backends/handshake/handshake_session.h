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

/// Gets the result of a handshake; called once. On success `socket` is the connection, and `peer`
/// is the proved rank at the other end. On failure `error` is set, and `peer` is the rank that the
/// other side claimed to be (-1: none).
using HandshakeResult = std::function<void(std::exception_ptr error, tcp::socket socket, int peer)>;

/// Runs a handshake over a connected socket without blocking the io_context. At the deadline it
/// closes the connection and reports Error(timeout). Until then it uses at most one socket and 1
/// KiB, whatever the other side does. After the returned Stranger is dismissed, `result` is not
/// called any more.
std::shared_ptr<Stranger> async_handshake(tcp::socket socket, Handshake handshake,
                                          Deadline deadline, HandshakeResult result);

/// Accepts connections until close(). Hands each connection that proves itself to `welcome`.
/// Admission bounds how many other connections are open and for how long. The gate runs on the
/// acceptor's io_context. Its pending work there keeps it alive until close().
class Gate : public std::enable_shared_from_this<Gate> {
 public:
  using Welcome = std::function<void(tcp::socket socket, int peer)>;
  using TurnAway = std::function<void(std::exception_ptr error, int claimed_peer)>;

  /// `keeper` is the name in the log of the rank that accepts here ("rank 3"). `turn_away` gets the
  /// errors of failed connections. `log` and `turn_away` may be empty. The gate sets
  /// terms.peer_name for each connection.
  Gate(tcp::acceptor acceptor, HandshakeTerms terms, const std::string& keeper, LogSink log,
       Welcome welcome, TurnAway turn_away);
  void open();
  /// Stops accepting. `welcome` and `turn_away` are not called any more.
  void close();
  /// Logs the connections that were turned away since the last line.
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
