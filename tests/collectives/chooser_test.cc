#include "tutti/collectives/chooser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/expect_error.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using enum CollectiveKind;

std::string_view choice(const Chooser& chooser, CollectiveKind kind, int64_t bytes, int size,
                        int hosts = 1, Determinism determinism = Determinism::fastest) {
  return chooser.choose({kind, bytes, size, hosts, determinism}).name;
}

std::string refusal(std::string_view scores, Determinism determinism = Determinism::fastest) {
  return test::refusal([&] { Chooser chooser(scores, determinism); });
}

TEST(Chooser, HasAnAnswerOfTheKindForEveryQuestion) {
  const Chooser chooser;
  for (int kind = 0; kind < kCollectiveKindCount; ++kind)
    for (const int64_t bytes : {int64_t{0}, int64_t{1000}, int64_t{1} << 20, int64_t{1} << 40})
      for (const int size : {1, 2, 3, 17, 1000})
        for (const int hosts : {1, 2, 17})
          for (const auto determinism :
               {Determinism::fastest, Determinism::run, Determinism::rank_order}) {
            if (hosts > size) continue;
            const auto& algorithm = chooser.choose(
                {static_cast<CollectiveKind>(kind), bytes, size, hosts, determinism});
            EXPECT_EQ(static_cast<int>(algorithm.kind), kind);
            if (determinism == Determinism::rank_order) {
              EXPECT_TRUE(algorithm.reduces_in_rank_order) << algorithm.name;
            }
          }
}

TEST(Chooser, GoesBySizeRanksAndHosts) {
  const Chooser chooser;
  EXPECT_EQ(choice(chooser, allreduce, 1000, 4), "one_shot");
  EXPECT_EQ(choice(chooser, allreduce, 1000, 16), "recursive_doubling");
  EXPECT_EQ(choice(chooser, allreduce, 1 << 20, 16), "halving_doubling");
  EXPECT_EQ(choice(chooser, allreduce, 64 << 20, 2), "two_shot");
  EXPECT_EQ(choice(chooser, allreduce, 64 << 20, 3), "two_shot");
  EXPECT_EQ(choice(chooser, allreduce, 64 << 20, 4), "halving_doubling");
  EXPECT_EQ(choice(chooser, allreduce, (4 << 20) - 1, 5), "halving_doubling");
  EXPECT_EQ(choice(chooser, allreduce, 4 << 20, 5), "ring");
  EXPECT_EQ(choice(chooser, allreduce, 64 << 20, 4, 2), "hierarchical");
  EXPECT_EQ(choice(chooser, allreduce, 64 << 20, 8, 8), "ring");
  EXPECT_EQ(choice(chooser, allreduce, 64 << 20, 4, 2, Determinism::rank_order), "two_shot");
  EXPECT_EQ(choice(chooser, broadcast, 64 << 20, 4), "chain");
}

// Averages of integers or f16 never use an algorithm that sends plain sums, whatever a score says.
TEST(Chooser, KeepsSums) {
  const Chooser plain, rings("allreduce:0-inf=ring;reduce_scatter:0-inf=ring"),
      shots("allreduce:0-inf=one_shot");
  for (const auto sums : {Sums::scaled, Sums::at_owner}) {
    for (const auto kind : {allreduce, reduce, reduce_scatter})
      for (const int64_t bytes : {0, 1000, 30'000, 1 << 20, 64 << 20})
        for (const int size : {1, 2, 3, 5, 17})
          for (const int hosts : {1, 2, 5})
            for (const auto* chooser : {&plain, &rings, &shots}) {
              if (hosts > size) continue;
              const Question question{kind, bytes, size, hosts, Determinism::fastest, sums};
              const auto& chosen = chooser->choose(question);
              EXPECT_EQ(chosen.kind, kind);
              EXPECT_TRUE(chosen.keeps(sums)) << chosen.name;
            }
    EXPECT_EQ(shots.choose({allreduce, 64 << 20, 8, 1, Determinism::fastest, sums}).name,
              "one_shot");
    const auto& across = plain.choose({allreduce, 64 << 20, 4, 2, Determinism::fastest, sums});
    EXPECT_EQ(across.name, sums == Sums::scaled ? "hierarchical" : "two_shot");
  }
}

TEST(Chooser, GoesByMeasuredThresholdsWhereThereAreSome) {
  const auto choose = [](const Thresholds& thresholds, std::string_view scores = "") {
    return Chooser(scores, Determinism::fastest, thresholds);
  };
  const auto rounds = choose({.one_shot_below = 100'000, .recursive_doubling_below = 200'000});
  EXPECT_EQ(choice(rounds, allreduce, 99'999, 6, 6), "one_shot");
  EXPECT_EQ(choice(rounds, allreduce, 100'000, 6, 6), "recursive_doubling");
  EXPECT_EQ(choice(rounds, allreduce, 199'999, 16, 16), "recursive_doubling");
  EXPECT_EQ(choice(rounds, allreduce, 200'000, 16, 16), "halving_doubling");
  EXPECT_EQ(choice(rounds, allreduce, 4 << 20, 16, 16), "ring");
  EXPECT_EQ(choice(choose({.halving_doubling_below = 1 << 20}), allreduce, 1 << 20, 16, 16),
            "ring");
  const auto pairs =
      choose({.halving_doubling_below = 1 << 20, .two_levels_from = Thresholds::kNever});
  EXPECT_EQ(choice(pairs, allreduce, (1 << 20) - 1, 4, 2), "halving_doubling");
  EXPECT_EQ(choice(pairs, allreduce, 1 << 20, 4, 2), "ring");

  const auto flat = choose({.two_levels_from = Thresholds::kNever});
  const auto levels = choose({.two_levels_from = 1 << 20});
  for (const auto kind : {allreduce, reduce_scatter, allgather}) {
    EXPECT_NE(choice(flat, kind, 64 << 20, 4, 2), "hierarchical");
    EXPECT_NE(choice(levels, kind, (1 << 20) - 1, 4, 2), "hierarchical");
    EXPECT_EQ(choice(levels, kind, 1 << 20, 4, 2), "hierarchical");
    EXPECT_NE(choice(levels, kind, 1 << 20, 4, 4), "hierarchical");
  }
  EXPECT_EQ(choice(flat, broadcast, 64 << 20, 4, 2), "chain");
  EXPECT_EQ(choice(levels, broadcast, 10, 4, 2), "hierarchical");

  EXPECT_EQ(choice(choose({.one_shot_below = 1 << 20}, "allreduce:0-inf=ring"), allreduce, 10, 4),
            "ring");
  EXPECT_EQ(choice(rounds, allreduce, 50'000, 4, 2, Determinism::rank_order), "two_shot");
}

TEST(Chooser, TakesScores) {
  const Chooser chooser("allreduce:0-32k=one_shot,32K-inf=ring;broadcast:1M-2M=binomial_tree");
  EXPECT_EQ(choice(chooser, allreduce, 0, 8), "one_shot");
  EXPECT_EQ(choice(chooser, allreduce, 32767, 8), "one_shot");
  EXPECT_EQ(choice(chooser, allreduce, 32768, 8), "ring");
  EXPECT_EQ(choice(chooser, allreduce, int64_t{1} << 50, 8), "ring");
  EXPECT_EQ(choice(chooser, broadcast, 1 << 20, 8), "binomial_tree");
  EXPECT_EQ(choice(chooser, broadcast, 2 << 20, 8), "chain");  // the upper limit is exclusive
  EXPECT_EQ(choice(Chooser("allreduce:0-inf=ring,0-1K=two_shot"), allreduce, 10, 8), "two_shot");
  EXPECT_EQ(choice(Chooser("allreduce:0-inf=ring,0-1K=auto"), allreduce, 10, 16),
            "recursive_doubling");
  EXPECT_NO_THROW(Chooser("", Determinism::fastest));
}

TEST(Chooser, NamesABackendForARange) {
  const Chooser chooser("allreduce:0-32k=shm/one_shot,32k-inf=shm+ucx/auto;broadcast:0-inf=chain");
  ASSERT_EQ(chooser.scores().size(), 3u);
  EXPECT_EQ(chooser.find(allreduce, 32767)->backend, "shm");
  EXPECT_EQ(chooser.find(allreduce, 32768)->backend, "shm+ucx");
  EXPECT_EQ(chooser.find(allreduce, 32768)->text, "allreduce:32k-inf=shm+ucx/auto");
  EXPECT_EQ(chooser.find(broadcast, 0)->backend, "");
  EXPECT_EQ(chooser.find(allgather, 0), nullptr);
  EXPECT_EQ(choice(chooser, allreduce, 100, 16), "one_shot");
  EXPECT_EQ(choice(chooser, allreduce, 64 << 20, 16), "ring");
  EXPECT_TRUE(chooser.overrides(allreduce));
  EXPECT_FALSE(chooser.overrides(allgather));
  EXPECT_FALSE(Chooser("allreduce:0-inf=ucx/auto").overrides(allreduce));
}

TEST(Chooser, CountsWhatAllRanksKnowAlike) {
  const int64_t counts[] = {3, 4};
  Collective collective{allgather, DataType::f64, ReduceOp::sum, 0, nullptr, nullptr, counts, {},
                        {}};
  EXPECT_EQ(agreed_bytes(collective), 56);
  collective.kind = alltoall;
  EXPECT_EQ(agreed_bytes(collective), 0);
}

TEST(Chooser, RefusesWhatItCannotRead) {
  using testing::HasSubstr;
  EXPECT_EQ(refusal("allreduce:0-32KB=ring"),
            "\"allreduce:0-32KB=ring\" is not a choice of algorithms: \"32KB\" is not a size "
            "(expected digits and an optional K, M or G, or inf); an example: "
            "allreduce:0-32K=one_shot,32K-inf=ucx/ring;broadcast:0-inf=ucx/auto");
  EXPECT_THAT(refusal("allreduce"), HasSubstr("expected a collective, a colon and ranges"));
  EXPECT_THAT(refusal("alreduce:0-inf=ring"),
              HasSubstr("there is no collective \"alreduce\", did you mean \"allreduce\"? "
                        "(expected allreduce, allgather, broadcast,"));
  EXPECT_THAT(refusal("allreduce:0-inf"), HasSubstr("expected ranges like 0-32K=ring"));
  EXPECT_THAT(refusal("allreduce:=ring"), HasSubstr("expected ranges like 0-32K=ring"));
  EXPECT_THAT(refusal("allreduce:"), HasSubstr("expected ranges like 0-32K=ring"));
  EXPECT_THAT(refusal("allreduce:0-inf=ring;"), HasSubstr("expected a collective"));
  EXPECT_THAT(refusal("allreduce:5-5=ring"), HasSubstr("the range \"5-5=ring\" is empty"));
  EXPECT_THAT(refusal("allreduce:-5-7=ring"), HasSubstr("is not a size"));
  EXPECT_THAT(refusal("allreduce:0-inf=chain"),
              HasSubstr("no algorithm \"chain\" for allreduce (expected auto, ring, "));
  EXPECT_THAT(refusal("allreduce:0-inf=ucx/rign"),
              HasSubstr("no algorithm \"rign\" for allreduce, did you mean \"ring\"?"));
  EXPECT_THAT(refusal("allreduce:0-inf=/ring"), HasSubstr("expected a backend before the slash"));
  EXPECT_THAT(refusal("allreduce:0-inf=ucx/"), HasSubstr("no algorithm \"\" for allreduce"));
}

TEST(Chooser, RefusesOverridesThatBreakRankOrder) {
  EXPECT_THAT(refusal("allreduce:0-inf=ring", Determinism::rank_order),
              testing::HasSubstr("ring of allreduce does not reduce in rank order"));
  EXPECT_NO_THROW(
      Chooser("allreduce:0-inf=two_shot;broadcast:0-inf=chain", Determinism::rank_order));
  test::expect_refused(
      "the algorithm ring of allreduce does not reduce in rank order, as determinism=rank_order "
      "requires; leave it out of the choice of algorithms, or choose another determinism",
      [] { choice(Chooser("allreduce:0-inf=ring"), allreduce, 5, 4, 1, Determinism::rank_order); });
}

}  // namespace
}  // namespace tutti
