#include "tutti/collectives/schedule.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <random>
#include <set>

#include "tests/collectives/every_algorithm.h"
#include "tests/collectives/validate.h"
#include "tests/support/expect_error.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

constexpr int kMostRanks = 17;
using Counts = std::vector<int64_t>;

int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Owns the problems of all ranks and the arrays to which they point.
struct Case {
  CollectiveKind kind;
  int size;
  int root = 0;
  Counts counts;
  std::vector<Counts> matrix;  // alltoall: from each rank to each rank
  std::vector<int> hosts;
  bool in_place = false;
  std::vector<Counts> columns = {};

  std::vector<Problem> problems() {
    if (kind == CollectiveKind::alltoall) {
      columns.assign(static_cast<size_t>(size), Counts());
      for (auto& row : matrix)
        for (size_t i = 0; i < row.size(); ++i) columns[i].push_back(row[i]);
    }
    std::vector<Problem> result;
    for (int rank = 0; rank < size; ++rank) {
      const auto place = static_cast<size_t>(rank);
      Problem problem{kind, rank, size, root, counts, {}, hosts, in_place};
      if (kind == CollectiveKind::alltoall) {
        problem.counts = matrix[place];
        problem.recv_counts = columns[place];
      }
      result.push_back(problem);
    }
    return result;
  }

  std::string text() const {
    return fmt::format("{} ranks, root {}, counts {}, matrix {}, hosts {}{}", size, root,
                       testing::PrintToString(counts), testing::PrintToString(matrix),
                       testing::PrintToString(hosts), in_place ? ", in place" : "");
  }
};

Simulation run(const Algorithm& algorithm, Case& example, Sums sums = Sums::plain) {
  if (sums == Sums::plain && algorithm.scales_sums) run(algorithm, example, Sums::scaled);
  auto problems = example.problems();
  std::vector<Schedule> schedules;
  for (auto& problem : problems) {
    problem.sums = sums;
    require_valid(problem);
    schedules.push_back(algorithm.plan(problem));
  }
  auto simulation = simulate(problems, schedules);
  EXPECT_EQ(simulation.fault, "") << to_string(algorithm.kind) << " " << algorithm.name << ": "
                                  << example.text();
  const bool is_in_rank_order = algorithm.reduces_in_rank_order && reduces(algorithm.kind);
  EXPECT_EQ(schedules[0].scales_at_owner, is_in_rank_order);
  return simulation;
}

std::vector<std::vector<int>> layouts(int size, std::mt19937& random) {
  std::vector<int> halves, last_apart, alternating, drawn;
  for (int rank = 0; rank < size; ++rank) {
    halves.push_back(rank * 2 / size);
    last_apart.push_back(rank == size - 1 ? 1 : 0);
    alternating.push_back(rank % 3);
    drawn.push_back(static_cast<int>(random() % 5) + 7);
  }
  return {{}, halves, last_apart, alternating, drawn};
}

std::vector<Counts> v_counts(int size, std::mt19937& random) {
  const auto n = static_cast<size_t>(size);
  std::vector<Counts> result = {Counts(n, 0), Counts(n, 1), Counts(n, 5), Counts(n, 0)};
  result.back()[n / 2] = 7;
  for (int i = 0; i < 3; ++i) {
    Counts drawn;
    for (size_t j = 0; j < n; ++j)
      drawn.push_back(random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % 9));
    result.push_back(drawn);
  }
  return result;
}

bool has_one_count(CollectiveKind kind) {
  return kind == CollectiveKind::allreduce || kind == CollectiveKind::broadcast ||
         kind == CollectiveKind::reduce;
}
bool is_rooted(CollectiveKind kind) {
  return kind == CollectiveKind::broadcast || kind == CollectiveKind::reduce ||
         kind == CollectiveKind::gather || kind == CollectiveKind::scatter;
}

class EveryAlgorithm : public testing::TestWithParam<Algorithm> {};

TEST_P(EveryAlgorithm, IsTheModelForAnyRanksCountsRootsAndHosts) {
  const auto& algorithm = GetParam();
  const auto kind = algorithm.kind;
  std::mt19937 random(20261121);
  for (int size = 1; size <= kMostRanks; ++size) {
    std::vector<Counts> counts;
    if (kind == CollectiveKind::barrier || kind == CollectiveKind::alltoall)
      counts = {{}};
    else if (has_one_count(kind))
      counts = {{0}, {1}, {2}, {size - 1}, {size}, {size + 1}, {3 * size + 1}, {67}};
    else
      counts = v_counts(size, random);
    std::vector<std::vector<Counts>> matrices = {{}};
    if (kind == CollectiveKind::alltoall) {
      matrices = {
          {}, std::vector<Counts>(static_cast<size_t>(size), Counts(static_cast<size_t>(size), 3))};
      for (int i = 0; i < size; ++i) matrices[0].push_back(v_counts(size, random).back());
    }
    std::set<int> roots = {0};
    if (is_rooted(kind)) roots = {0, size / 3, size / 2, size - 1};
    for (const auto& hosts : layouts(size, random))
      for (const auto& matrix : matrices)
        for (const auto& count : counts)
          for (const int root : roots) {
            Case example{kind, size, root, count, matrix, hosts};
            run(algorithm, example);
            const bool is_even = matrix.empty() || matrix[0] == Counts(matrix.size(), 3);
            if (has_one_count(kind) || (kind == CollectiveKind::alltoall && is_even)) {
              example.in_place = true;
              run(algorithm, example);
            }
            if (HasFailure()) return;
          }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, EveryAlgorithm, testing::ValuesIn(test::collectives_of_all()),
                         test::name_of);

TEST(Schedules, SendMeetsRecv) {
  const Counts counts = {5}, none = {0};
  const std::vector<Problem> problems = {{CollectiveKind::send, 0, 3, 2, counts, {}, {}, false},
                                         {CollectiveKind::send, 1, 3, 0, none, {}, {}, false},
                                         {CollectiveKind::recv, 2, 3, 0, counts, {}, {}, false}};
  const std::vector<Schedule> schedules = {
      find_algorithm(CollectiveKind::send, "direct").plan(problems[0]),
      {},
      find_algorithm(CollectiveKind::recv, "direct").plan(problems[2])};
  EXPECT_EQ(simulate(problems, schedules).fault, "");
}

int64_t across(const Simulation& simulation, const std::vector<int>& hosts, int host) {
  int64_t elements = 0;
  for (size_t a = 0; a < hosts.size(); ++a)
    for (size_t b = 0; b < hosts.size(); ++b)
      if (hosts[a] == host && hosts[b] != host) elements += simulation.sent[a][b];
  return elements;
}

TEST(Schedules, HierarchicalAllreduceCrossesHostsAsLittleAsARingOfHosts) {
  const std::vector<std::vector<int>> layouts = {
      {0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 2, 2}, {0, 1, 0, 1, 2, 2}, {0, 0, 0, 1, 1, 1, 1}};
  for (const auto& hosts : layouts) {
    const int host_count = static_cast<int>(std::set(hosts.begin(), hosts.end()).size());
    const int64_t count = 60 * 7;
    Case example{CollectiveKind::allreduce, static_cast<int>(hosts.size()), 0, {count}, {}, hosts};
    const auto simulation = run(find_algorithm(CollectiveKind::allreduce, "hierarchical"), example);
    for (int host = 0; host < host_count; ++host)
      EXPECT_EQ(across(simulation, hosts, host) * host_count, 2 * (host_count - 1) * count)
          << testing::PrintToString(hosts);
  }
}

TEST(Schedules, OtherHierarchicalFormsCrossEachByteOnce) {
  const std::vector<int> hosts = {0, 1, 0, 2, 2, 2, 1, 0};
  const Counts counts = {4, 0, 3, 9, 1, 1, 2, 6};
  const int size = static_cast<int>(hosts.size());
  const auto of_host = [&](int host) {
    int64_t sum = 0;
    for (size_t i = 0; i < hosts.size(); ++i) sum += hosts[i] == host ? counts[i] : 0;
    return sum;
  };
  Case reduce{CollectiveKind::reduce_scatter, size, 0, counts, {}, hosts};
  Case gather{CollectiveKind::allgather, size, 0, counts, {}, hosts};
  const auto reduced = run(find_algorithm(reduce.kind, "hierarchical"), reduce);
  const auto gathered = run(find_algorithm(gather.kind, "hierarchical"), gather);
  for (int host = 0; host < 3; ++host) {
    EXPECT_EQ(across(reduced, hosts, host), total(counts) - of_host(host));
    EXPECT_EQ(across(gathered, hosts, host), 2 * of_host(host));
  }
  Case broadcast{CollectiveKind::broadcast, size, 3, {10}, {}, hosts};
  const auto sent = run(find_algorithm(broadcast.kind, "hierarchical"), broadcast);
  EXPECT_EQ(across(sent, hosts, 0) + across(sent, hosts, 1) + across(sent, hosts, 2), 2 * 10);
}

TEST(Schedules, CostWhatTheirNamesPromise) {
  const auto cost = [](std::string_view name, int size) {
    Case example{CollectiveKind::allreduce, size, 0, {size * 32}, {}, {}};
    const auto simulation = run(find_algorithm(example.kind, name), example);
    int64_t elements = 0;
    for (const int64_t sent : simulation.sent[0]) elements += sent;
    return std::pair(simulation.rounds, elements);
  };
  EXPECT_EQ(cost("one_shot", 8), std::pair(1, int64_t{7 * 256}));
  EXPECT_EQ(cost("two_shot", 8), std::pair(2, int64_t{2 * 7 * 32}));
  EXPECT_EQ(cost("ring", 8), std::pair(14, int64_t{2 * 7 * 32}));
  EXPECT_EQ(cost("recursive_doubling", 8).second, int64_t{3 * 256});
  EXPECT_EQ(cost("halving_doubling", 8).second, int64_t{2 * 7 * 32});
}

// Some algorithms have the verdicts of all ranks after an early round, so later results need not
// wait for them. In halving, ranks beyond a power of two get all verdicts only in the last round.
TEST(Schedules, HearAllBeforeTheyWriteOutput) {
  for (const int size : {2, 3, 4, 7, 8, 16}) {
    Case example{CollectiveKind::allreduce, size, 0, {100}, {}, {}};
    const int core = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
    for (const auto& problem : example.problems()) {
      const auto heard_all = [&](std::string_view name) {
        return find_algorithm(example.kind, name).plan(problem).heard_all;
      };
      EXPECT_EQ(heard_all("two_shot"), 0) << size;
      EXPECT_EQ(heard_all("ring"), size - 2) << size;
      const int halvings = std::countr_zero(static_cast<unsigned>(core));
      EXPECT_EQ(heard_all("halving_doubling"), problem.rank < core ? halvings : -1) << size;
    }
  }
}

// Damages schedules and expects that the validator finds the fault.
class BrokenSchedules : public testing::Test {
 protected:
  std::string fault_of(const std::function<void(std::vector<Schedule>&)>& damage) {
    Case example{CollectiveKind::allreduce, 4, 0, {8}, {}, {}};
    const auto problems = example.problems();
    std::vector<Schedule> schedules;
    for (const auto& problem : problems)
      schedules.push_back(find_algorithm(problem.kind, "ring").plan(problem));
    damage(schedules);
    return simulate(problems, schedules).fault;
  }
  static Step& first(Schedule& schedule, Action action) {
    return *std::find_if(schedule.steps.begin(), schedule.steps.end(),
                         [&](const Step& step) { return step.action == action; });
  }
};

TEST_F(BrokenSchedules, AreNamed) {
  using Schedules = std::vector<Schedule>;
  EXPECT_EQ(fault_of([](Schedules&) {}), "");
  EXPECT_THAT(fault_of([](Schedules& all) { first(all[1], Action::recv).target.count = 1; }),
              testing::HasSubstr("2 elements come for 1"));
  EXPECT_THAT(fault_of([](Schedules& all) { first(all[1], Action::send).peer = 3; }),
              testing::HasSubstr("rank 1 sends nothing to receive"));
  EXPECT_THAT(fault_of([](Schedules& all) { first(all[2], Action::send).from = Slot::output; }),
              testing::HasSubstr("undefined"));
  EXPECT_THAT(fault_of([](Schedules& all) { first(all[2], Action::send).source.begin = 7; }),
              testing::HasSubstr("out of bounds"));
  EXPECT_THAT(fault_of([](Schedules& all) { first(all[0], Action::reduce).source.begin = 0; }),
              testing::HasSubstr("different elements"));
  EXPECT_THAT(fault_of([](Schedules& all) { all[3].steps.pop_back(); }),
              testing::HasSubstr("rank 3 does not receive"));
  EXPECT_THAT(fault_of([](Schedules& all) {
                auto& step = first(all[0], Action::reduce);
                step.operands = {1, 0, 0, 0};
              }),
              testing::HasSubstr("of ranks"));
  EXPECT_THAT(fault_of([](Schedules& all) { all[0].scales_at_owner = true; }),
              testing::HasSubstr("rank order"));
  EXPECT_THAT(fault_of([](Schedules& all) { all[0].heard_all = 0; }),
              testing::HasSubstr("heard only from ranks"));
  EXPECT_THAT(fault_of([](Schedules& all) { all[0].heard_all = 99; }),
              testing::HasSubstr("output is written before all ranks were heard"));
}

TEST(Problems, ThatMakeNoSenseAreRefused) {
  const auto message = [](const Problem& problem) {
    return test::refusal([&] { require_valid(problem); });
  };
  const Counts one = {4}, two = {4, 4}, negative = {-1}, other = {1, 2};
  using enum CollectiveKind;
  EXPECT_NO_THROW(require_valid({allreduce, 0, 2, 0, one, {}, {}, false}));
  EXPECT_EQ(message({allreduce, 0, 2, 0, two, {}, {}, false}),
            "allreduce on rank 0 of 2: expected 1 counts, got 2");
  EXPECT_EQ(message({allgather, 1, 2, 0, one, {}, {}, false}),
            "allgather on rank 1 of 2: expected 2 counts, got 1");
  EXPECT_EQ(message({broadcast, 1, 2, 2, one, {}, {}, false}),
            "broadcast on rank 1 of 2: there is no rank 2 (root or peer)");
  EXPECT_EQ(message({allreduce, 0, 2, 0, negative, {}, {}, false}),
            "allreduce on rank 0 of 2: a count is negative");
  EXPECT_EQ(message({send, 1, 2, 1, one, {}, {}, false}),
            "send on rank 1 of 2: a rank cannot send to or receive from itself");
  EXPECT_EQ(message({alltoall, 0, 2, 0, two, other, {}, false}),
            "alltoall on rank 0 of 2: what a rank sends to itself is not what it receives from "
            "itself");
}

TEST(Algorithms, AreFoundByNameAndKind) {
  EXPECT_EQ(find_algorithm(CollectiveKind::allreduce, "ring").kind, CollectiveKind::allreduce);
  EXPECT_STREQ(test::error_of([&] { find_algorithm(CollectiveKind::broadcast, "rign"); }).what(),
               "there is no algorithm \"rign\" for broadcast; there are: binomial_tree, chain, "
               "hierarchical");
}

}  // namespace
}  // namespace tutti
