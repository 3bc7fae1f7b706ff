// Drawn cases, each run by ranks of the shipped node over a simulated backend and judged by what
// knows nothing of the node.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "tests/simulation/draw.h"
#include "tests/simulation/judge/invariants.h"
#include "tests/simulation/run.h"
#include "tests/simulation/text.h"

namespace tutti::simulation {
namespace {

#ifdef NDEBUG
constexpr uint64_t kSeeds = 1000;
#else
constexpr uint64_t kSeeds = 200;  // under sanitizers
#endif

void run_seeds(uint64_t first, const DrawOptions& options) {
  for (uint64_t seed = first; seed < first + kSeeds; ++seed) {
    const Case drawn = draw(seed, options);
    const Outcome outcome = run(drawn);
    const auto findings = check(drawn, outcome.record);
    for (const auto& finding : findings)
      ADD_FAILURE() << "seed " << seed << ", I" << finding.invariant << ": " << finding.text;
    if (!findings.empty()) FAIL() << to_text(drawn);
  }
}

TEST(Simulation, CasesThatOnceFoundABugFindNone) {
  int cases = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(TUTTI_SOURCE_DIR "/tests/simulation/cases")) {
    std::ifstream text(file.path());
    const Case kept = parse(std::string(std::istreambuf_iterator<char>(text), {}));
    ++cases;
    for (const auto& finding : check(kept, run(kept).record))
      ADD_FAILURE() << file.path().filename() << ", I" << finding.invariant << ": " << finding.text;
  }
  EXPECT_GE(cases, 5);
}

// The judge allows a rank to be given up by one that leaves; here it must not be.
TEST(Simulation, TheHalfOfACallWithARankThatStayedIsDone) {
  const Case half = parse(
      "world size=3\n"
      "ranks 0: block s0 send 1 root=1, r0 recv 1 root=2; pause time=5000000\n"
      "ranks 1: pause time=2000000; block s0 recv 1; pause time=5000000\n"
      "ranks 2: close\n");
  bool is_received = false;
  for (const auto& one : run(half).record.operations)
    is_received |=
        one.site.rank == 1 && one.name == "s0" && one.ended != kNever && one.error_code == 0;
  EXPECT_TRUE(is_received);
}

TEST(Simulation, ProgramsWithoutFaultsKeepAllPromises) { run_seeds(1, {.without_faults = true}); }

TEST(Simulation, ProgramsWithFaultsKeepAllPromises) { run_seeds(1000001, {}); }

// The trace depends neither on the addresses of memory nor on what ran before.
TEST(Simulation, OneCaseHasOneTrace) {
  constexpr uint64_t kEvery = 64;
  std::vector<std::unique_ptr<char[]>> ballast;
  for (uint64_t seed = kEvery; seed <= kSeeds; seed += kEvery) {
    const Case drawn = draw(seed);
    const Outcome first = run(drawn);
    for (size_t bytes = 16; bytes < 4096; bytes += 16 * (1 + seed % 7))
      ballast.push_back(std::make_unique<char[]>(bytes));
    EXPECT_NE(first.hash, 0u);
    EXPECT_EQ(run(drawn).hash, first.hash) << "seed " << seed << "\n" << to_text(drawn);
    if (ballast.size() > 10000) ballast.clear();
  }
}

}  // namespace
}  // namespace tutti::simulation
