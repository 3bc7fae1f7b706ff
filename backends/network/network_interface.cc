#include "tutti/backends/network/network_interface.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <boost/asio/ip/udp.hpp>
#include <memory>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

using asio::ip::address;

std::optional<address> to_address(const sockaddr* socket_address) {
  if (socket_address == nullptr) return {};
  if (socket_address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(socket_address);
    return asio::ip::address_v4(ntohl(v4->sin_addr.s_addr));
  }
  if (socket_address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(socket_address);
    asio::ip::address_v6::bytes_type bytes;
    std::copy_n(v6->sin6_addr.s6_addr, bytes.size(), bytes.begin());
    return asio::ip::address_v6(bytes);
  }
  return {};
}

bool is_link_local(const address& candidate) {
  return candidate.is_v6() && candidate.to_v6().is_link_local();
}

// Returns the source address for a distant target, according to the routing table. Connecting a
// datagram socket only looks up the route and sends no packet. The target address is reserved for
// documentation (RFC 5737).
std::optional<address> address_of_default_route() {
  asio::io_context io(1);
  asio::ip::udp::socket socket(io);
  ErrorStatus status;
  socket.open(asio::ip::udp::v4(), status);
  if (!status) socket.connect({asio::ip::make_address("203.0.113.1"), 9}, status);
  if (status) return {};
  const auto local = socket.local_endpoint(status);
  if (status) return {};
  return local.address();
}

bool all_on_one_host(const Context& context) {
  return std::all_of(context.places.begin(), context.places.end(),
                     [&](const Place& place) { return place.host == context.places.front().host; });
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw system_error("cannot list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<InterfaceAddress> addresses;
  for (const auto* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (!(entry->ifa_flags & IFF_UP)) continue;
    const auto found = to_address(entry->ifa_addr);
    if (found && !is_link_local(*found)) addresses.push_back({entry->ifa_name, *found});
  }
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const auto& entry) { return entry.address.is_v4(); });
  return addresses;
}

std::string to_text(const std::vector<InterfaceAddress>& addresses) {
  std::string text;
  for (const auto& entry : addresses)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", entry.interface,
                        entry.address.to_string());
  return text.empty() ? "none" : text;
}

InterfaceAddress named_interface(const std::string& wanted,
                                 const std::vector<InterfaceAddress>& available,
                                 std::string_view or_else) {
  ErrorStatus status;
  const auto numeric = asio::ip::make_address(wanted, status);
  const bool is_address = !status;
  for (const auto& entry : available)
    if (is_address ? entry.address == numeric : entry.interface == wanted) return entry;
  // All addresses of 127.0.0.0/8 belong to the host, but only one of them is listed. Link-local
  // addresses are not listed either.
  if (is_address && (numeric.is_loopback() || is_link_local(numeric)))
    for (const auto& entry : available)
      if (entry.address.is_loopback() == numeric.is_loopback()) return {entry.interface, numeric};
  std::vector<std::string> names;
  for (const auto& entry : available) names.push_back(entry.interface);
  const auto nearest = nearest_word(wanted, names);
  throw Error(
      ErrorCode::unavailable,
      fmt::format("TUTTI_INTERFACE={} names no interface that is up and no address of this "
                  "host{}{}; there are {}",
                  wanted, or_else, nearest ? fmt::format(", did you mean \"{}\"?", *nearest) : "",
                  to_text(available)));
}

address choose_address(const Context& context, const std::vector<InterfaceAddress>& available) {
  if (!context.network_interface.empty())
    return named_interface(context.network_interface, available).address;

  const auto first = [&](bool loopback) -> std::optional<address> {
    for (const auto& entry : available)
      if (entry.address.is_loopback() == loopback) return entry.address;
    return {};
  };
  if (all_on_one_host(context))
    if (const auto loopback = first(true)) return *loopback;

  ErrorStatus status;
  auto towards_store = asio::ip::make_address(context.store->local_address(), status);
  if (!status && !towards_store.is_loopback() && !is_link_local(towards_store))
    return towards_store;
  if (const auto towards_world = address_of_default_route()) return *towards_world;
  if (const auto any = first(false)) return *any;
  if (all_on_one_host(context))
    throw Error(ErrorCode::unavailable,
                fmt::format("rank {} has no network interface that is up, not even the loopback "
                            "interface, over which the ranks of one host reach each other; ip link "
                            "set lo up brings it up, and backend shm needs none",
                            context.rank));
  throw Error(ErrorCode::unavailable,
              fmt::format("rank {} has no network interface that ranks on other hosts can reach; "
                          "this host has {}",
                          context.rank, to_text(available)));
}

}  // namespace tutti
