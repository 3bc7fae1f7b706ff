#pragma once

#include <string>
#include <vector>

#include "tutti/backends/network/asio.h"

namespace tutti {

/// A listening socket on exactly this address, close-on-exec. Throws Error(io) naming address and
/// port, also if another process has the port.
tcp::acceptor listen_on(asio::io_context& io, const tcp::endpoint& endpoint);

/// Accepts one waiting connection, close-on-exec and tuned. `status` may tell of an error of that
/// one connection, which is_harmless_accept_error tells from one of the listening socket.
tcp::socket accept_waiting(tcp::acceptor& acceptor, ErrorStatus& status);
bool is_harmless_accept_error(const ErrorStatus& status);

/// The endpoints of a host name or a numeric address, which is never looked up. Throws Error(io),
/// and Error(invalid_argument) for what is no port.
std::vector<tcp::endpoint> resolve(asio::io_context& io, const std::string& host, int port);

/// "10.0.0.3:4711" or "[fd00::3]:4711".
std::string to_text(const tcp::endpoint& endpoint);

/// What all our connections share: no delay, close-on-exec and a bound on silence.
void tune_connection(int descriptor);

/// Gives a connected socket the congestion control of this name, as far as the kernel lets it; ""
/// is the host's own, but over loopback cubic.
void choose_congestion(int descriptor, const std::string& name);
/// Throws Error(invalid_argument) that lists what there is, if this process cannot have it.
void check_congestion(const std::string& name);

}  // namespace tutti
