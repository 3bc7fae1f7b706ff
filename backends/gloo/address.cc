#include "tutti/backends/gloo/address.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tutti/base/error.h"

namespace tutti {

namespace {

struct Address {
  std::string interface, text;
  bool is_loopback = false;
};

// IPv4 before IPv6; without link-local ones, which mean nothing without their interface.
std::vector<Address> addresses_here() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw system_error("cannot list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<Address> found;
  for (const int family : {AF_INET, AF_INET6})
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family ||
          (one->ifa_flags & IFF_UP) == 0)
        continue;
      char text[NI_MAXHOST];
      const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (::getnameinfo(one->ifa_addr, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0)
        continue;
      if (std::string_view(text).find('%') != std::string_view::npos) continue;
      found.push_back({one->ifa_name, text, (one->ifa_flags & IFF_LOOPBACK) != 0});
    }
  return found;
}

}  // namespace

std::string choose_listening_address(const Context& context) {
  const auto here = addresses_here();
  const auto pick = [&](auto&& fits) -> const Address* {
    const auto found = std::find_if(here.begin(), here.end(), fits);
    return found == here.end() ? nullptr : &*found;
  };
  const auto& wanted = context.network_interface;
  const Address* address = nullptr;
  if (!wanted.empty()) {
    address = pick([&](const Address& a) { return a.interface == wanted || a.text == wanted; });
  } else {
    const auto hosts = context.hosts();
    const bool is_one_host =
        std::all_of(hosts.begin(), hosts.end(), [](int host) { return host == 0; });
    const auto to_store = context.store->local_address();
    if (is_one_host) address = pick([](const Address& a) { return a.is_loopback; });
    if (!address) address = pick([&](const Address& a) { return a.text == to_store; });
    if (!address) address = pick([](const Address& a) { return !a.is_loopback; });
  }
  if (address) return address->text;
  std::vector<std::string> all;
  for (const auto& one : here) all.push_back(fmt::format("{} {}", one.interface, one.text));
  throw Error(ErrorCode::unavailable,
              fmt::format("rank {} finds no network interface \"{}\" for backend gloo; there are "
                          "{}. Set TUTTI_INTERFACE to one of them",
                          context.rank, wanted, fmt::join(all, ", ")))
      .with_rank(context.rank);
}

}  // namespace tutti
