#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/network/asio.h"

namespace tutti {

struct InterfaceAddress {
  std::string interface;
  asio::ip::address address;
};

/// Returns the addresses of this host's interfaces that are up. All IPv4 addresses come before all
/// IPv6 addresses. Link-local addresses are left out.
std::vector<InterfaceAddress> interface_addresses();

/// Returns text such as "lo 127.0.0.1, eth0 10.0.0.2".
std::string to_text(const std::vector<InterfaceAddress>& addresses);

/// Returns the address that TUTTI_INTERFACE=`wanted` selects. `wanted` is an interface's name or an
/// address. If there is none, throws Error(unavailable), which lists the available ones. `or_else`
/// is added to the text and says what else `wanted` could have meant.
InterfaceAddress named_interface(const std::string& wanted,
                                 const std::vector<InterfaceAddress>& available,
                                 std::string_view or_else = {});

/// Returns the one address on which this rank listens. It is the first of these that exists: the
/// address that Context::network_interface selects; loopback, if all ranks are on one host; the
/// address from which this host reaches the store; the address of the default route; any other
/// address. Throws Error(unavailable), which lists the available addresses.
asio::ip::address choose_address(const Context& context,
                                 const std::vector<InterfaceAddress>& available);

}  // namespace tutti
