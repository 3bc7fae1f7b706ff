#pragma once

#include <string>
#include <vector>

#include "tutti/backends/network/asio.h"

namespace tutti {

/// Returns a listening socket on exactly this address, close-on-exec. Throws Error(io) with address
/// and port, also if another process has the port.
tcp::acceptor listen_on(asio::io_context& io, const tcp::endpoint& endpoint);

/// Accepts one waiting connection, close-on-exec and tuned. `status` may be an error of that one
/// connection, for which is_harmless_accept_error returns true, or an error of the listening
/// socket.
tcp::socket accept_waiting(tcp::acceptor& acceptor, ErrorStatus& status);
bool is_harmless_accept_error(const ErrorStatus& status);

/// Returns the endpoints of a host name. A numeric address is not looked up. Throws Error(io), and
/// Error(invalid_argument) if the port is out of range.
std::vector<tcp::endpoint> resolve(asio::io_context& io, const std::string& host, int port);

/// Returns "10.0.0.3:4711" or "[fd00::3]:4711".
std::string to_text(const tcp::endpoint& endpoint);

/// Sets what all our connections share: no delay, close-on-exec and a bound on silence.
void tune_connection(int descriptor);

/// Gives a connected socket the congestion control of this name, if the kernel allows it. "" keeps
/// the host's own, except over loopback, which gets cubic.
void choose_congestion(int descriptor, const std::string& name);
/// Throws Error(invalid_argument), which lists the possible names, if this process cannot use it.
void check_congestion(const std::string& name);

}  // namespace tutti
