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

/// Returns the addresses of this host's interfaces that are up, all IPv4 before all IPv6, without
/// link-local ones.
std::vector<InterfaceAddress> interface_addresses();

/// Returns text such as "lo 127.0.0.1, eth0 10.0.0.2".
std::string to_text(const std::vector<InterfaceAddress>& addresses);

/// Returns the interface address that TUTTI_INTERFACE=`wanted` gives by an interface's name or by
/// an address. Throws Error(unavailable), which lists the available ones. `or_else` adds to the
/// text what else `wanted` could have meant.
InterfaceAddress named_interface(const std::string& wanted,
                                 const std::vector<InterfaceAddress>& available,
                                 std::string_view or_else = {});

/// Returns the one address on which this rank listens. The first of these that exists counts: the
/// one that Context::network_interface gives (a name or an address); loopback, if all ranks are on
/// one host; the address from which this host reaches the store; the address of its default route;
/// any other. Throws Error(unavailable), which lists the available ones.
asio::ip::address choose_address(const Context& context,
                                 const std::vector<InterfaceAddress>& available);

}  // namespace tutti
