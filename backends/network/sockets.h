#pragma once

#include <string>
#include <vector>

#include "tutti/backends/network/asio.h"

namespace tutti {

/// Returns a close-on-exec socket that listens on exactly this address. Throws Error(io), which
/// names the address and the port, for example if another process has the port.
tcp::acceptor listen_on(asio::io_context& io, const tcp::endpoint& endpoint);

/// Accepts one waiting connection, close-on-exec and tuned. `status` is an error of that
/// connection, for which is_harmless_accept_error() returns true, or an error of the listening
/// socket.
tcp::socket accept_waiting(tcp::acceptor& acceptor, ErrorStatus& status);
bool is_harmless_accept_error(const ErrorStatus& status);

/// Returns the endpoints of a host name. A numeric address needs no look-up. Throws Error(io), or
/// Error(invalid_argument) if the port is out of range.
std::vector<tcp::endpoint> resolve(asio::io_context& io, const std::string& host, int port);

/// Returns "10.0.0.3:4711" or "[fd00::3]:4711".
std::string to_text(const tcp::endpoint& endpoint);

/// Sets the options that all our connections share: no delay, close-on-exec and a bound on silence.
void tune_connection(int descriptor);

/// Gives a connected socket the congestion control of this name, if the kernel allows it. If the
/// name is empty, the socket keeps the host's default, except that loopback connections get cubic.
void choose_congestion(int descriptor, const std::string& name);
/// Throws Error(invalid_argument), which lists the possible names, if this process cannot use the
/// congestion control of this name.
void check_congestion(const std::string& name);

}  // namespace tutti
