#include "tests/simulation/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/simulation/contents.h"
#include "tests/simulation/text.h"

namespace tutti::simulation {
namespace {

TEST(Draw, TheTextOfACaseMakesTheSameCase) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Case drawn = draw(seed);
    const std::string text = to_text(drawn);
    ASSERT_EQ(parse(text), drawn) << "seed " << seed << "\n" << text;
  }
}

TEST(Draw, TheBytesTierHasTheSameProgramsAndOtherWorlds) {
  int long_ones = 0, slow = 0, splits = 0, small = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Case drawn = draw(seed, {.tier = Tier::bytes}), other = draw(seed);
    const std::string text = to_text(drawn);
    ASSERT_EQ(parse(text), drawn) << "seed " << seed << "\n" << text;
    ASSERT_TRUE(drawn.world.over_streams && !other.world.over_streams);
    ASSERT_EQ(drawn.ranks.size(), other.ranks.size());
    // Only a model of a backend has these properties, so they are not drawn for the shipped one.
    ASSERT_FALSE(drawn.world.serves_blocking || drawn.world.works_elsewhere ||
                 drawn.world.cannot_cancel || drawn.world.fails_before_reason);
    for (const auto& fault : drawn.faults) ASSERT_NE(fault.kind, Fault::Kind::operation_fails);
    long_ones += drawn.ranks != other.ranks;
    slow += drawn.world.bandwidth > 0;
    splits += drawn.world.splits > 0;
    small += drawn.world.buffer < 8192;
  }
  for (const int count : {long_ones, slow, splits, small}) EXPECT_GT(count, 100);
}

TEST(Draw, TheSharedTierHasSmallChunksAndMemoryThatPeersReach) {
  int cut = 0, given = 0, poor = 0, blocks = 0, spins = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Case drawn = draw(seed, {.tier = Tier::shared});
    const std::string text = to_text(drawn);
    ASSERT_EQ(parse(text), drawn) << "seed " << seed << "\n" << text;
    ASSERT_EQ(drawn.world.tier(), Tier::shared);
    ASSERT_TRUE(drawn.world.serves_blocking);
    ASSERT_LE(drawn.world.one_shot_bytes, drawn.world.chunk_bytes);
    for (const auto& fault : drawn.faults) ASSERT_NE(fault.kind, Fault::Kind::operation_fails);
    cut += drawn.world.chunk_bytes <= 512;
    poor += drawn.world.lacks_memory > 0;
    spins += drawn.world.spins > 0;
    const auto has = [&](Action::Kind kind) {
      return std::ranges::any_of(drawn.ranks[0].front(),
                                 [&](const Action& action) { return action.kind == kind; });
    };
    given += has(Action::Kind::allocate);
    blocks += has(Action::Kind::block);
  }
  for (const int count : {cut, given, poor, blocks, spins}) EXPECT_GT(count, 100);
  EXPECT_THROW(parse("world over_memory=1\n"), std::invalid_argument);
  EXPECT_THROW(parse("world over_streams=1 over_memory=1 chunk_bytes=100\n"),
               std::invalid_argument);
}

TEST(Draw, OneSeedIsOneCase) {
  for (uint64_t seed = 0; seed < 50; ++seed) EXPECT_EQ(draw(seed), draw(seed));
  EXPECT_NE(draw(1), draw(2));
}

TEST(Draw, WithoutFaultsTheWorldAndTheProgramAreTheSame) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Case with = draw(seed), without = draw(seed, {.without_faults = true});
    EXPECT_TRUE(without.faults.empty());
    EXPECT_EQ(with.ranks, without.ranks);
    EXPECT_EQ(with.world.latency, without.world.latency);
  }
}

TEST(Draw, AThousandSeedsHaveEverything) {
  std::set<Fault::Kind> faults;
  std::set<Action::Kind> actions;
  std::set<CollectiveKind> kinds;
  bool has_group = false, has_any = false, has_two_scripts = false, disagrees = false;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Case drawn = draw(seed);
    for (const auto& fault : drawn.faults) faults.insert(fault.kind);
    for (const auto& scripts : drawn.ranks) {
      has_two_scripts |= scripts.size() == 2;
      disagrees |= scripts != drawn.ranks.front();
      for (const auto& script : scripts)
        for (const auto& action : script) {
          actions.insert(action.kind);
          has_group |= action.kind == Action::Kind::submit && !action.text.empty();
          for (const auto& operation : action.operations) {
            kinds.insert(operation.kind);
            has_any |= operation.root == kAnyRank;
          }
        }
    }
  }
  EXPECT_EQ(faults.size(), static_cast<size_t>(kFaultKinds));
  EXPECT_EQ(actions.size(), static_cast<size_t>(kActionKinds));
  EXPECT_EQ(kinds.size(), static_cast<size_t>(kCollectiveKindCount));
  EXPECT_TRUE(has_group && has_any && has_two_scripts && disagrees);
}

TEST(Draw, EveryCaseIsWellFormed) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Case drawn = draw(seed);
    SCOPED_TRACE(to_text(drawn));
    const int size = drawn.world.size;
    ASSERT_THAT(size, testing::AllOf(testing::Ge(2), testing::Le(5)));
    ASSERT_EQ(drawn.ranks.size(), static_cast<size_t>(size));
    for (const auto& fault : drawn.faults) {
      ASSERT_TRUE(fault.rank >= 0 && fault.rank < size && fault.peer >= 0 && fault.peer < size);
      ASSERT_GT(drawn.world.heals_at, 0);
    }
    for (int rank = 0; rank < size; ++rank)
      for (const auto& script : drawn.ranks[static_cast<size_t>(rank)])
        for (const auto& action : script)
          for (const auto& operation : action.operations) {
            ASSERT_TRUE(operation.root >= kAnyRank && operation.root < size);
            const bool is_pair =
                operation.kind == CollectiveKind::send || operation.kind == CollectiveKind::recv;
            ASSERT_FALSE(is_pair && operation.root == rank);
            ASSERT_LE(operation.count(), 128);
            if (operation.splits.empty()) continue;
            ASSERT_EQ(operation.splits.size(), static_cast<size_t>(size));
            ASSERT_EQ(std::accumulate(operation.splits.begin(), operation.splits.end(), int64_t{0}),
                      operation.rows);
          }
  }
}

TEST(CaseText, IsShortAndSkipsWhatIsUsual) {
  Case small;
  small.world.size = 3;
  small.world.latency = 50;
  Operation sum{.name = "t0", .rows = 8, .contents = 3};
  const Script both = {{Action::Kind::submit, {sum}}, {Action::Kind::wait}};
  small.ranks = {{both}, {both}, {{{Action::Kind::close, {}, "bad"}}}};
  small.faults = {{.kind = Fault::Kind::kill, .rank = 2, .at = 1200}};
  EXPECT_EQ(to_text(small),
            "world size=3 latency=50\n"
            "ranks 0,1: submit t0 allreduce 8 c=3; wait\n"
            "ranks 2: close text=bad\n"
            "fault kill rank=2 at=1200\n");
  EXPECT_EQ(parse("# found by chance\n\n" + to_text(small)), small);
}

TEST(CaseText, TellsTheLineThatIsWrong) {
  const auto says = [](const char* text) {
    try {
      parse(text);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(says("world size=3\nfault burn rank=1\n"), "line 2: \"burn\" is unknown");
  EXPECT_EQ(says("world size=many\n"), "line 1: \"many\" is no number");
  EXPECT_EQ(says("world colour=3\n"), "line 1: \"colour=3\" is unknown");
  EXPECT_EQ(says("ranks 0: submit t0 allsum 4\n"), "line 1: \"allsum\" is unknown");
  EXPECT_EQ(says("hello\n"), "line 1: a line begins with world, ranks or fault");
}

TEST(Contents, AreTheSameNumbersInEveryType) {
  std::vector<std::byte> bytes;
  append(bytes, DataType::f16, 1);
  append(bytes, DataType::f16, 300);
  append(bytes, DataType::bf16, 1);
  append(bytes, DataType::i16, 258);
  const std::vector<int> expected = {0x00, 0x3c, 0xb0, 0x5c, 0x80, 0x3f, 0x02, 0x01};
  ASSERT_EQ(bytes.size(), expected.size());
  for (size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(static_cast<int>(bytes[i]), expected[i]);
  const Operation operation{.name = "t", .dtype = DataType::f64, .rows = 5, .contents = 1};
  EXPECT_EQ(fill_input(operation, 0).size(), 40U);
  EXPECT_NE(fill_input(operation, 0), fill_input(operation, 1));
}

}  // namespace
}  // namespace tutti::simulation
