#include "tutti/backends/hierarchical/device_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tutti {

namespace {

using Memory = LevelsPlan::Memory;
using Counts = std::vector<int64_t>;

int64_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Makes a plan. A call without elements is left out on all ranks that would take part in it.
class Planner {
 public:
  Planner(const Collective& collective, const LevelsGrid& grid)
      : what_(collective), grid_(grid), host_size_(grid.ranks.front().size()) {}

  LevelsPlan make() {
    switch (what_.kind) {
      case CollectiveKind::broadcast:
        broadcast();
        break;
      case CollectiveKind::allgather:
        allgather();
        break;
      case CollectiveKind::reduce_scatter:
        reduce_scatter();
        break;
      default:
        allreduce();
    }
    return std::move(plan_);
  }

 private:
  // First the ranks of each host reduce and scatter. Then the ranks with the same number on their
  // hosts reduce their shares. Then the ranks of each host gather the shares.
  void allreduce() {
    const auto shares = shares_of(what_.send_counts[0]);
    const auto [at, count] = own(shares);
    call(plan_.before, CollectiveKind::reduce_scatter, {Memory::input}, {Memory::output, at},
         shares);
    plan_.fetch = {{{Memory::output, at}, 0, count}};
    cross(CollectiveKind::allreduce, {Memory::pinned}, {count});
    plan_.put = plan_.fetch;
    call(plan_.after, CollectiveKind::allgather, {Memory::output, at}, {Memory::output}, shares);
    plan_.pinned = count;
    plan_.reduced = what_.send_counts[0];
  }

  // First the ranks of the root's host get all elements. Then each of them sends its share to the
  // other hosts.
  void broadcast() {
    const auto shares = shares_of(what_.send_counts[0]);
    const auto [at, count] = own(shares);
    const auto [root_host, root_number] = place_of(what_.root);
    const LevelsPlan::Copy share{{Memory::output, at}, 0, count};
    const bool is_there = root_host == grid_.host;
    if (is_there) {
      call(plan_.before, CollectiveKind::broadcast, {Memory::input}, {Memory::output},
           {what_.send_counts[0]}, root_number);
      plan_.fetch = {share};
    }
    cross(CollectiveKind::broadcast, {Memory::pinned}, {count}, root_host);
    if (!is_there) {
      plan_.put = {share};
      call(plan_.after, CollectiveKind::allgather, {Memory::output, at}, {Memory::output}, shares);
    }
    plan_.pinned = count;
  }

  // First the ranks with the same number on their hosts gather their parts. Then the ranks of each
  // host gather the results, host after host.
  void allgather() {
    const auto own_count = what_.send_counts[static_cast<size_t>(grid_.rank())];
    plan_.fetch = {{{Memory::input}, 0, own_count}};
    const auto counts = counts_of_number();
    cross(CollectiveKind::allgather, {Memory::pinned, own_count}, counts);
    int64_t arrived = own_count;
    for (int host = 0; host < hosts(); ++host) {
      const auto count = counts[static_cast<size_t>(host)];
      const auto at = begin_of(grid_.of(host));
      plan_.put.push_back({{Memory::output, at}, arrived, count});
      arrived += count;
      call(plan_.after, CollectiveKind::allgather, {Memory::output, at},
           {Memory::output, begin_of(grid_.ranks[static_cast<size_t>(host)].front())},
           counts_of_host(host));
    }
    plan_.pinned = arrived;
  }

  // First the ranks of this host make one reduce_scatter per host, which sums the parts of that
  // host over the ranks of this host. Then the ranks with the same number on their hosts reduce
  // these sums.
  void reduce_scatter() {
    const auto counts = counts_of_number();
    for (int host = 0; host < hosts(); ++host) {
      call(plan_.before, CollectiveKind::reduce_scatter,
           {Memory::input, begin_of(grid_.ranks[static_cast<size_t>(host)].front())},
           {Memory::scratch, plan_.scratch}, counts_of_host(host));
      plan_.scratch += counts[static_cast<size_t>(host)];
    }
    plan_.fetch = {{{Memory::scratch}, 0, plan_.scratch}};
    cross(CollectiveKind::reduce_scatter, {Memory::pinned, plan_.scratch}, counts);
    plan_.reduced = counts[static_cast<size_t>(grid_.host)];
    plan_.put = {{{Memory::output}, plan_.scratch, plan_.reduced}};
    plan_.pinned = plan_.scratch + plan_.reduced;
  }

  static void call(std::vector<LevelsPlan::Call>& calls, CollectiveKind kind,
                   LevelsPlan::Spot input, LevelsPlan::Spot output, Counts counts, int root = 0) {
    if (sum(counts) > 0) calls.push_back({kind, input, output, std::move(counts), root});
  }
  void cross(CollectiveKind kind, LevelsPlan::Spot output, Counts counts, int root = 0) {
    if (sum(counts) > 0) plan_.cross = {kind, {Memory::pinned}, output, std::move(counts), root};
  }

  int hosts() const { return static_cast<int>(grid_.ranks.size()); }
  // Returns how many of `count` elements each rank of a host moves between the hosts.
  Counts shares_of(int64_t count) const {
    const auto n = static_cast<int64_t>(host_size_);
    Counts shares;
    for (int64_t i = 0; i < n; ++i) shares.push_back(count / n + (i < count % n ? 1 : 0));
    return shares;
  }
  // Returns the offset and the size of this rank's share.
  std::pair<int64_t, int64_t> own(const Counts& shares) const {
    const auto mine = shares.begin() + grid_.number;
    return {std::accumulate(shares.begin(), mine, int64_t{0}), *mine};
  }
  std::pair<int, int> place_of(int rank) const {
    for (int host = 0; host < hosts(); ++host) {
      const auto& ranks = grid_.ranks[static_cast<size_t>(host)];
      const auto found = std::find(ranks.begin(), ranks.end(), rank);
      if (found != ranks.end()) return {host, static_cast<int>(found - ranks.begin())};
    }
    return {0, 0};
  }
  int64_t begin_of(int rank) const {
    return std::accumulate(what_.send_counts.begin(), what_.send_counts.begin() + rank, int64_t{0});
  }
  Counts counts_of_host(int host) const {
    Counts counts;
    for (const int rank : grid_.ranks[static_cast<size_t>(host)])
      counts.push_back(what_.send_counts[static_cast<size_t>(rank)]);
    return counts;
  }
  // Returns the counts of the ranks that have this rank's number on their hosts, host after host.
  Counts counts_of_number() const {
    Counts counts;
    for (int host = 0; host < hosts(); ++host)
      counts.push_back(what_.send_counts[static_cast<size_t>(grid_.of(host))]);
    return counts;
  }

  const Collective& what_;
  const LevelsGrid& grid_;
  const size_t host_size_;
  LevelsPlan plan_;
};

}  // namespace

bool LevelsGrid::is_in_blocks() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const auto& host) {
    return host.back() - host.front() == static_cast<int>(host.size()) - 1;
  });
}

LevelsPlan plan_levels(const Collective& collective, const LevelsGrid& grid) {
  return Planner(collective, grid).make();
}

}  // namespace tutti
