#include "tools/run/host_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::run {

namespace {

constexpr int kMostSlots = 65'536;

Host parse_host(std::string_view word) {
  const auto refused = [&](std::string_view why) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("--hosts: \"{}\" {} (expected name, name:ranks or [address]:ranks)",
                             word, why));
  };
  Host host;
  std::string_view rest;
  if (word.starts_with('[')) {
    const auto close = word.find(']');
    if (close == word.npos) throw refused("has no closing bracket");
    host.name = word.substr(1, close - 1);
    rest = word.substr(close + 1);
  } else {
    const auto colon = std::min(word.find(':'), word.size());
    host.name = word.substr(0, colon);
    rest = word.substr(colon);
  }
  // ssh would read a leading dash as an option.
  if (host.name.empty() || host.name.front() == '-') throw refused("names no host");
  if (host.name.find_first_of(" \t\n'\"\\$`;&|<>()") != host.name.npos)
    throw refused("is not the name of a host");
  if (rest.empty()) return host;
  const auto slots =
      rest.front() == ':' ? parse_integer(rest.substr(1), 1, kMostSlots) : std::nullopt;
  if (!slots) throw refused("gives no number of ranks");
  host.slots = static_cast<int>(*slots);
  return host;
}

}  // namespace

std::vector<Host> parse_hosts(std::string_view text) {
  std::vector<Host> hosts;
  for (const auto& word : split_text(text, ',')) {
    auto host = parse_host(word);
    if (std::any_of(hosts.begin(), hosts.end(),
                    [&](const Host& other) { return other.name == host.name; }))
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("--hosts: {} is there twice; write {}:ranks once", host.name, host.name));
    hosts.push_back(std::move(host));
  }
  return hosts;
}

std::vector<Seat> place_ranks(const std::vector<Host>& hosts, int ranks) {
  const auto slots =
      std::accumulate(hosts.begin(), hosts.end(), int64_t{0},
                      [](int64_t sum, const Host& host) { return sum + host.slots; });
  if (ranks > slots || slots > kMostSlots)
    throw Error(ErrorCode::invalid_argument,
                ranks > slots
                    ? fmt::format("-np {}, but --hosts has room for {}", ranks, slots)
                    : fmt::format("--hosts: {} ranks are more than {}", slots, kMostSlots));
  int left = ranks == 0 ? static_cast<int>(slots) : ranks;
  std::vector<Seat> seats;
  for (size_t host = 0; host < hosts.size() && left > 0; ++host) {
    const int here = std::min(hosts[host].slots, left);
    for (int local = 0; local < here; ++local)
      seats.push_back({static_cast<int>(seats.size()), static_cast<int>(host), local, here});
    left -= here;
  }
  return seats;
}

std::string shell_quote(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=/.,:@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return std::string(word);
  std::string quoted = "'";
  for (const char c : word)
    if (c == '\'')
      quoted += "'\\''";
    else
      quoted += c;
  return quoted + "'";
}

}  // namespace tutti::run
