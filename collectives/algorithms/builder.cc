#include "tutti/collectives/algorithms/builder.h"

#include <algorithm>

namespace tutti {

std::vector<Range> cut(Range range, int parts) {
  std::vector<Range> result;
  int64_t begin = range.begin;
  for (int part = 0; part < parts; ++part) {
    const int64_t count = range.count / parts + (part < range.count % parts ? 1 : 0);
    result.push_back({begin, count});
    begin += count;
  }
  return result;
}

std::vector<Range> consecutive(std::span<const int64_t> counts) {
  std::vector<Range> result;
  int64_t begin = 0;
  for (const int64_t count : counts) {
    result.push_back({begin, count});
    begin += count;
  }
  return result;
}

int64_t longest(std::span<const Range> ranges) {
  int64_t result = 0;
  for (const auto& range : ranges) result = std::max(result, range.count);
  return result;
}

void Builder::send(int peer, Slot from, Range source) {
  schedule_.steps.push_back(
      {.round = round_, .action = Action::send, .peer = peer, .from = from, .source = source});
}

void Builder::recv(int peer, Slot to, Range target) {
  schedule_.steps.push_back(
      {.round = round_, .action = Action::recv, .peer = peer, .to = to, .target = target});
}

void Builder::copy(Slot from, Range source, Slot to, int64_t target) {
  schedule_.steps.push_back({.round = round_,
                             .action = Action::copy,
                             .from = from,
                             .to = to,
                             .source = source,
                             .target = {target, source.count}});
}

void Builder::reduce(Slot from, Range source, Operands operands, Slot to, int64_t target,
                     int divisor) {
  schedule_.steps.push_back({.round = round_,
                             .action = Action::reduce,
                             .from = from,
                             .to = to,
                             .source = source,
                             .target = {target, source.count},
                             .operands = operands,
                             .divisor = divisor});
}

int64_t Builder::scratch(int64_t count) {
  const int64_t begin = schedule_.scratch;
  schedule_.scratch += count;
  return begin;
}

Schedule copy_through(const Problem& problem) {
  Builder builder;
  builder.copy(Slot::input, {0, input_count(problem)}, Slot::output, 0);
  return builder.take();
}

HostMap::HostMap(const Problem& problem) {
  std::vector<int> numbers;  // the problem's host numbers, in order of first appearance
  for (int rank = 0; rank < problem.size; ++rank) {
    const int number = problem.hosts.empty() ? 0 : problem.hosts[static_cast<size_t>(rank)];
    auto found = std::find(numbers.begin(), numbers.end(), number);
    if (found == numbers.end()) {
      found = numbers.insert(numbers.end(), number);
      members_.emplace_back();
    }
    auto& members = members_[static_cast<size_t>(found - numbers.begin())];
    host_of_.push_back(static_cast<int>(found - numbers.begin()));
    index_of_.push_back(static_cast<int>(members.size()));
    members.push_back(rank);
  }
}

int HostMap::least_members() const {
  const auto fewer = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  return static_cast<int>(std::min_element(members_.begin(), members_.end(), fewer)->size());
}

int HostMap::most_members() const {
  const auto fewer = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  return static_cast<int>(std::max_element(members_.begin(), members_.end(), fewer)->size());
}

int HostMap::dealt_to(int host, int rank) const {
  // Counts the ranks below `rank` that are not on `host`.
  const auto foreigners = std::count_if(host_of_.begin(), host_of_.begin() + rank,
                                        [&](int other) { return other != host; });
  const auto& here = members(host);
  return here[static_cast<size_t>(foreigners) % here.size()];
}

std::vector<std::vector<int>> HostMap::dealt(int host) const {
  std::vector<std::vector<int>> result(members(host).size());
  size_t turn = 0;
  for (int rank = 0; rank < static_cast<int>(host_of_.size()); ++rank)
    if (host_of(rank) != host) result[turn++ % result.size()].push_back(rank);
  return result;
}

int HostMap::most_dealt() const {
  size_t most = 0;
  for (const auto& here : members_)
    most = std::max(most, (host_of_.size() - here.size() + here.size() - 1) / here.size());
  return static_cast<int>(most);
}

}  // namespace tutti
