#include "tutti/collectives/thresholds.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace tutti {
namespace {

using enum TwoLevels;

constexpr LinkFigures kMemory{2, 8000};     // shared memory
constexpr LinkFigures kGigabit{30, 117};    // 1 Gb/s
constexpr LinkFigures kLoopback{10, 2500};  // sockets without a network

std::vector<int> layout(int hosts, int ranks_each) {
  std::vector<int> numbers;
  for (int rank = 0; rank < hosts * ranks_each; ++rank) numbers.push_back(rank / ranks_each);
  return numbers;
}

Thresholds derive(const LinkFigures& between, const std::optional<LinkFigures>& within,
                  const std::vector<int>& hosts, TwoLevels two_levels = where_they_pay) {
  return derive_thresholds({between, within}, hosts, two_levels);
}

TEST(Thresholds, OfOneHostAreNone) {
  EXPECT_EQ(derive(kLoopback, kMemory, layout(1, 4)), Thresholds());
  EXPECT_EQ(derive(kLoopback, {}, {}), Thresholds());
}

TEST(Thresholds, LinksThatAreAlikeNeedNoTwoLevels) {
  for (const auto policy : {where_they_pay, unless_alike}) {
    EXPECT_EQ(derive(kLoopback, kLoopback, layout(2, 2), policy).two_levels_from,
              Thresholds::kNever);
    EXPECT_EQ(derive({20, 2000}, LinkFigures{4, 3900}, layout(2, 2), policy).two_levels_from,
              Thresholds::kNever);
  }
}

TEST(Thresholds, ASlowLinkIsSparedByTwoLevels) {
  for (const auto& hosts : {layout(2, 2), layout(2, 8), layout(4, 4)}) {
    const auto from = derive(kGigabit, kMemory, hosts).two_levels_from;
    ASSERT_TRUE(from.has_value());
    EXPECT_LE(*from, 64 << 10);
  }
  // Ten hosts with two ranks each. The ring of all ranks leaves each host once, so it sends hardly
  // more bytes between hosts.
  EXPECT_EQ(derive({30, 1000}, LinkFigures{2, 4000}, layout(10, 2)).two_levels_from,
            Thresholds::kNever);
  // If neighbours in the ring are always on different hosts, every step leaves a host.
  std::vector<int> turns;
  for (int rank = 0; rank < 20; ++rank) turns.push_back(rank % 10);
  EXPECT_NE(derive({30, 1000}, LinkFigures{2, 4000}, turns).two_levels_from, Thresholds::kNever);
}

TEST(Thresholds, WhoAskedForTwoLevelsKeepsThemUnlessTheLinksAreAlike) {
  EXPECT_EQ(derive(kGigabit, kMemory, layout(2, 2), unless_alike).two_levels_from, std::nullopt);
  EXPECT_EQ(derive({30, 1000}, LinkFigures{2, 4000}, layout(10, 2), unless_alike).two_levels_from,
            std::nullopt);
}

TEST(Thresholds, WithoutAWayWithinAHostTheTableDecidesOnTwoLevels) {
  EXPECT_EQ(derive(kGigabit, {}, {0, 1, 1}).two_levels_from, std::nullopt);
  EXPECT_EQ(derive(kGigabit, {}, layout(4, 1)).two_levels_from, std::nullopt);
}

// The table was measured on a link where a message takes about 10 us.
TEST(Thresholds, AreNearTheTableWhereThatWasMeasured) {
  const auto two = derive(kLoopback, {}, layout(2, 1));
  EXPECT_NEAR(static_cast<double>(*two.one_shot_below), 32 << 10, 2 << 10);
  const auto eight = derive(kLoopback, {}, layout(8, 1));
  EXPECT_GT(*eight.one_shot_below, 1 << 10);
  EXPECT_LT(*eight.one_shot_below, 16 << 10);
  EXPECT_GT(*eight.recursive_doubling_below, 8 << 10);
  EXPECT_LT(*eight.recursive_doubling_below, 128 << 10);
}

TEST(Thresholds, OfFewerRoundsGrowWithTheLatency) {
  for (const auto& hosts : {layout(2, 1), layout(3, 1), layout(4, 1), layout(6, 1), layout(7, 1),
                            layout(2, 2), layout(3, 3), layout(16, 1), layout(33, 2)}) {
    Thresholds before{0, 0, 0, {}};
    for (double latency = 1; latency < 10'000; latency *= 1.5) {
      const auto now = derive({latency, 1000}, kMemory, hosts);
      EXPECT_GE(now.one_shot_below, before.one_shot_below) << latency;
      EXPECT_GE(now.recursive_doubling_below, before.recursive_doubling_below) << latency;
      if (now.halving_doubling_below) {
        EXPECT_GE(now.halving_doubling_below, before.halving_doubling_below) << latency;
      }
      before = now;
      if (!before.halving_doubling_below) before.halving_doubling_below = 0;
    }
    EXPECT_GT(before.one_shot_below, derive({1, 1000}, kMemory, hosts).one_shot_below);
  }
}

TEST(Thresholds, AFasterLinkOfTheSameLatencyBearsLargerRounds) {
  const auto slow = derive({30, 100}, {}, layout(8, 1)),
             fast = derive({30, 10'000}, {}, layout(8, 1));
  EXPECT_LT(slow.one_shot_below, fast.one_shot_below);
  EXPECT_LT(slow.recursive_doubling_below, fast.recursive_doubling_below);
}

// A ring of two ranks on each of two hosts has one link from host to host.
TEST(Thresholds, TheRingTakesOverWhereFewerOfItsLinksLeaveTheHost) {
  const auto pairs = derive(kLoopback, {}, layout(2, 2));
  ASSERT_TRUE(pairs.halving_doubling_below.has_value());
  EXPECT_GT(*derive({100, 2500}, {}, layout(2, 2)).halving_doubling_below,
            *pairs.halving_doubling_below);
  EXPECT_EQ(derive(kLoopback, {}, {0, 1, 0, 1}).halving_doubling_below, std::nullopt);
  EXPECT_EQ(derive(kLoopback, {}, layout(4, 1)).halving_doubling_below, std::nullopt);
}

// If the number of ranks is not a power of two, halving sends the data twice more. So the ring
// takes over at some size. The longer its many rounds take, the larger this size is.
TEST(Thresholds, TheRingTakesOverWhereItSavesBytes) {
  EXPECT_EQ(derive(kLoopback, {}, layout(8, 1)).halving_doubling_below, std::nullopt);
  const auto six = derive(kLoopback, {}, layout(6, 1));
  ASSERT_TRUE(six.halving_doubling_below.has_value());
  EXPECT_GT(*derive({100, 2500}, {}, layout(6, 1)).halving_doubling_below,
            *six.halving_doubling_below);
}

}  // namespace
}  // namespace tutti
