// What the peers' programs share: sizes, exact data, ranks by fork, and how a time is taken.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "benchmarks/common/data.h"
#include "benchmarks/common/fork_team.h"
#include "benchmarks/common/measure.h"
#include "benchmarks/common/sizes.h"

namespace tutti::benchmarks {
namespace {

constexpr unsigned kDeadline_s = 30;

int run_ranks(int size, const std::function<void(ForkTeam&)>& body) {
  return ForkTeam::run(size, {}, kDeadline_s, false, body);
}

TEST(BenchmarkSizes, AreRangesListsOrOne) {
  EXPECT_EQ(parse_sizes("4..1K", 16), (std::vector<int64_t>{4, 64, 1024}));
  EXPECT_EQ(parse_sizes("4,64K,1M", 4), (std::vector<int64_t>{4, 65536, 1048576}));
  EXPECT_EQ(parse_sizes("2G", 4), (std::vector<int64_t>{int64_t{2} << 30}));
  for (const char* words : {"", "x", "4..", "-4", "3", "4T", "4,,8"})
    EXPECT_THROW(parse_sizes(words, 4), std::invalid_argument) << words;
  EXPECT_THROW(parse_sizes("4..64", 1), std::invalid_argument);
}

TEST(BenchmarkData, OneMisplacedElementIsCounted) {
  constexpr int64_t kCount = 3 * Pattern::kPeriod + 5;
  const auto data = make_buffer(kCount);
  const auto sums = Pattern::reduced(3);
  sums.fill(data.get(), kCount);
  EXPECT_EQ(sums.count_wrong(data.get(), kCount), 0);
  EXPECT_GT(Pattern::of_rank(0).count_wrong(data.get(), kCount), kCount / 2);
  data[kCount - 1] += 1;
  data[17] += 1;
  EXPECT_EQ(sums.count_wrong(data.get(), kCount), 2);
}

TEST(BenchmarkData, SumsStayFiniteUntilTheNextFill) {
  for (const int ranks : {2, 3, 4, 16}) {
    float value = 16;
    for (int64_t i = 0; i < calls_before_overflow(ranks); ++i) value *= static_cast<float>(ranks);
    EXPECT_TRUE(std::isfinite(value)) << ranks;
  }
}

TEST(BenchmarkTeam, RanksAgreeOnLargestAndSum) {
  EXPECT_EQ(run_ranks(3,
                      [](ForkTeam& team) {
                        for (int round = 0; round < 100; ++round) {
                          if (team.max(team.rank() + round) != 2 + round)
                            throw std::runtime_error("wrong maximum");
                          if (team.sum(team.rank()) != 3) throw std::runtime_error("wrong sum");
                        }
                        const auto all = team.exchange("rank " + std::to_string(team.rank()));
                        if (all.size() != 3 || all[1] != "rank 1")
                          throw std::runtime_error("wrong pieces");
                      }),
            0);
}

TEST(BenchmarkTeam, AFailedRankEndsTheOthers) {
  EXPECT_EQ(run_ranks(2,
                      [](ForkTeam& team) {
                        if (team.rank() == 1) throw std::runtime_error("on purpose");
                        team.barrier();  // the other never comes
                      }),
            1);
}

TEST(BenchmarkTeam, AHungRankMeetsItsDeadline) {
  EXPECT_EQ(ForkTeam::run(1, {}, 1, false, [](ForkTeam&) { ::pause(); }), 128 + SIGALRM);
}

TEST(BenchmarkMethod, ATimeIsTheSlowestRanksMean) {
  const int code = run_ranks(2, [](ForkTeam& team) {
    int64_t calls = 0, fills = 0;
    const auto timing = measure(
        team, {.repetitions = 3, .repetition_ms = 20, .warmup = 1}, 4, [&] { ++fills; },
        [&] {
          ++calls;
          ::usleep(team.rank() == 0 ? 200 : 1000);
        });
    if (timing.median_us < 1000) throw std::runtime_error("the faster rank's time was taken");
    if (timing.repetitions != 3 || timing.iterations < 1 || timing.iterations > 20)
      throw std::runtime_error("wrong number of calls");
    if (calls > 4 * fills) throw std::runtime_error("more calls than a fill is good for");
  });
  EXPECT_EQ(code, 0);
}

TEST(BenchmarkMethod, ASlowCellEndsEarly) {
  EXPECT_EQ(run_ranks(1,
                      [](ForkTeam& team) {
                        const Method method{.repetitions = 100, .warmup = 0, .cell_ms = 50};
                        const auto timing = measure(
                            team, method, kNeverOverflows, [] {}, [] { ::usleep(20'000); });
                        if (timing.repetitions > 5) throw std::runtime_error("went on");
                      }),
            0);
}

}  // namespace
}  // namespace tutti::benchmarks
