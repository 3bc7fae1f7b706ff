#include "tests/simulation/judge/shrink.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/simulation/draw.h"
#include "tests/simulation/text.h"

namespace tutti::simulation {
namespace {

bool has_kill(const Case& from) {
  return std::any_of(from.faults.begin(), from.faults.end(),
                     [](const Fault& fault) { return fault.kind == Fault::Kind::kill; });
}

bool has_allgather(const Case& from) {
  for (const auto& scripts : from.ranks)
    for (const auto& script : scripts)
      for (const auto& action : script)
        for (const auto& operation : action.operations)
          if (operation.kind == CollectiveKind::allgather) return true;
  return false;
}

TEST(Shrink, KeepsWhatTheFailureTakesAndLittleElse) {
  const auto fails = [](const Case& from) { return has_kill(from) && has_allgather(from); };
  int shrunk = 0;
  for (uint64_t seed = 0; seed < 2000 && shrunk < 10; ++seed) {
    const Case drawn = draw(seed);
    if (!fails(drawn)) continue;
    ++shrunk;
    const Shrunk result = shrink(drawn, fails);
    const std::string text = to_text(result.smallest);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + text);
    EXPECT_TRUE(fails(result.smallest));
    EXPECT_LE(result.runs, 400);
    EXPECT_EQ(result.smallest.world.size, 2);
    EXPECT_EQ(result.smallest.faults.size(), 1U);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 10);
  }
  EXPECT_EQ(shrunk, 10);
}

TEST(Shrink, StopsAfterSoManyRuns) {
  int calls = 0;
  const Shrunk result = shrink(
      draw(7), [&](const Case&) { return ++calls, true; }, 20);
  EXPECT_EQ(calls, 20);
  EXPECT_EQ(result.runs, 20);
}

TEST(Shrink, ARankThatGoesTakesItsPairsAndSharesAlong) {
  const Case from = parse(
      "world size=3\nranks 0: submit p send 4 root=1, q send 4 root=2, s alltoall 6 splits=1/2/3\n"
      "ranks 1: submit p recv 4, b broadcast 2 root=2\nranks 2: submit q recv 4\n"
      "fault kill rank=1\nfault reset rank=2 peer=0\n");
  EXPECT_EQ(to_text(without_rank(from, 1)),
            "world\nranks 0: submit q send 4 root=1, s alltoall 4 splits=1/3\n"
            "ranks 1: submit q recv 4\nfault reset rank=1\n");
}

}  // namespace
}  // namespace tutti::simulation
