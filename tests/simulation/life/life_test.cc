// Drawn jobs that the shipped core/meeting and core/membership run. The judge does not know that
// code.
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "tests/simulation/life/life_case.h"
#include "tests/simulation/life/life_judge.h"
#include "tests/simulation/life/life_world.h"
#include "tests/simulation/seeds_of_commit.h"

namespace tutti::simulation {
namespace {

constexpr uint64_t kSeeds = 1000;

void run_seeds(uint64_t first) {
  std::cout << "seeds from " << first << " on; commit " << kCommit << std::endl;
  LifeLooks looks{};
  for (uint64_t seed = first; seed < first + kSeeds; ++seed) {
    const LifeCase drawn = draw_life(seed);
    const auto findings = check_life(drawn, World(drawn).run(), &looks);
    for (const auto& finding : findings)
      ADD_FAILURE() << "seed " << seed << " at commit " << kCommit << ", L" << finding.promise
                    << ": " << finding.text;
    if (!findings.empty()) FAIL() << to_text(drawn);
  }
  for (size_t promise = 1; promise < looks.size(); ++promise)
    EXPECT_GE(looks[promise], 100) << "L" << promise << " was looked at so seldom";
}

// Seed 5003, one of these, finds the planted bug place_in_a_forgotten_round, which few seeds hit.
TEST(LifeSeeds, ThatAreFixedKeepAllPromises) { run_seeds(4101); }
TEST(LifeSeeds, OfTheCommitKeepAllPromises) { run_seeds(kFirstSeedOfCommit); }

TEST(LifeSeeds, ASeedIsOneRun) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const LifeCase drawn = draw_life(seed);
    std::string traces[2];
    for (auto& trace : traces) {
      World world(drawn, true);
      world.run();
      trace = world.trace();
    }
    EXPECT_EQ(traces[0], traces[1]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tutti::simulation
