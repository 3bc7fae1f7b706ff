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

/// The addresses of this host's interfaces that are up, IPv4 before IPv6 for each; link-local ones
/// are left out.
std::vector<InterfaceAddress> interface_addresses();

/// "lo 127.0.0.1, eth0 10.0.0.2"
std::string to_text(const std::vector<InterfaceAddress>& addresses);

/// The one that TUTTI_INTERFACE=`wanted` names, by its name or an address. Throws
/// Error(unavailable) that lists what there is; `or_else`: what else could have been meant.
InterfaceAddress named_interface(const std::string& wanted,
                                 const std::vector<InterfaceAddress>& available,
                                 std::string_view or_else = {});

/// The one address on which this rank listens. In this order: what Context::network_interface says
/// (a name or an address); loopback if all ranks are on one host; the address from which the store
/// is reached; the one from which the world is reached; any other. Throws Error(unavailable) that
/// lists what there is.
asio::ip::address choose_address(const Context& context,
                                 const std::vector<InterfaceAddress>& available);

}  // namespace tutti
