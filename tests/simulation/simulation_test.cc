// Drawn cases of all tiers. Ranks of the shipped node run each, and a judge that does not know the
// node checks it.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/simulation/coverage.h"
#include "tests/simulation/draw.h"
#include "tests/simulation/fields.h"
#include "tests/simulation/judge/invariants.h"
#include "tests/simulation/run.h"
#include "tests/simulation/seeds_of_commit.h"
#include "tests/simulation/text.h"
#include "tutti/core/agreement/messages.h"
#include "tutti/core/node/phase.h"

// A damaged answer may ask for more memory than there is. Sanitizers must treat that as an error of
// the operation, too.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace tutti::simulation {
namespace {

// The seeds of one share. Each tier runs eight shares side by side. The bytes tier has half as many
// seeds in a share, the shared tier a fifth.
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 3750;
constexpr bool kCountsWhatIsCovered = true;
#else
constexpr uint64_t kSeeds = 3750 / 8;
constexpr bool kCountsWhatIsCovered = false;  // so few cases may lack a rare event
#endif
constexpr uint64_t kOften = 100;  // one in this many cases has a frequent event
// This message needs a join while a use of a pair runs, which one in 500 drawn cases has. Kept
// cases send it.
constexpr auto kRareMessage = static_cast<size_t>(MessageType::pair_recalled);

void run_seeds(uint64_t first, const DrawOptions& options, Coverage& coverage) {
  std::cout << "seeds from " << first << " on; commit " << kCommit << std::endl;
  constexpr std::array<uint64_t, 3> kShares = {kSeeds, kSeeds / 2, kSeeds / 5};
  const uint64_t count = kShares.at(static_cast<size_t>(options.tier));
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Case drawn = draw(seed, options);
    const Outcome outcome = run(drawn);
    coverage.add(drawn, outcome.record);
    const auto findings = check(drawn, outcome.record, &coverage.looks);
    for (const auto& finding : findings)
      ADD_FAILURE() << "seed " << seed << " at commit " << kCommit << ", I" << finding.invariant
                    << ": " << finding.text;
    if (!findings.empty()) FAIL() << to_text(drawn);
  }
}

void expect_often(uint64_t count, const Coverage& of, std::string_view what, uint64_t often) {
  EXPECT_GE(count * often, of.cases)
      << what << " is in " << count << " of " << of.cases << " cases";
}

TEST(Simulation, CasesThatOnceFoundABugFindNone) {
  int cases = 0, with_rare_message = 0;
  for (const auto& file :
       std::filesystem::recursive_directory_iterator(TUTTI_SOURCE_DIR "/tests/simulation/cases")) {
    if (file.path().extension() != ".case") continue;
    std::ifstream text(file.path());
    const Case kept = parse(std::string(std::istreambuf_iterator<char>(text), {}));
    ++cases;
    const auto outcome = run(kept);
    with_rare_message += std::ranges::any_of(
        outcome.record.ranks, [](const auto& rank) { return rank.messages[kRareMessage] > 0; });
    for (const auto& finding : check(kept, outcome.record))
      ADD_FAILURE() << file.path().filename() << ", I" << finding.invariant << ": " << finding.text;
  }
  EXPECT_GE(cases, 30);
  EXPECT_GE(with_rare_message, 3);
}

// The judge lets the other part be given up if its rank leaves too. In this case it must be done.
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

// Expects that the cases covered exactly the edges of the phases' drawing, every message, every
// fault, and in the shared tier every event in shared memory. Operations of a shipped backend never
// fail by themselves.
void expect_all_of(const Coverage& coverage, Tier tier) {
  const uint64_t often = tier == Tier::operations ? kOften : 2 * kOften;
  std::array<bool, kPhaseCount * kPhaseCount> is_drawn{};
  for (const auto& [from, to] : phase_edges())
    is_drawn.at(static_cast<size_t>(from) * kPhaseCount + static_cast<size_t>(to)) = true;
  for (size_t edge = 0; edge < is_drawn.size(); ++edge) {
    const std::string name =
        fmt::format("{} -> {}", to_string(static_cast<Phase>(edge / kPhaseCount)),
                    to_string(static_cast<Phase>(edge % kPhaseCount)));
    if (!is_drawn[edge])
      EXPECT_EQ(coverage.phase_edges[edge], 0u) << name;
    else
      expect_often(coverage.phase_edges[edge], coverage, name, often);
  }
  for (size_t type = 0; type < kMessageNames.size(); ++type)
    if (type != kRareMessage)
      expect_often(coverage.messages[type], coverage, kMessageNames[type], often);
  for (size_t kind = 0; kind < kFaultNames.size(); ++kind)
    if (tier == Tier::operations || kind != static_cast<size_t>(Fault::Kind::operation_fails))
      expect_often(coverage.faults[kind], coverage, kFaultNames[kind], often);
  for (size_t sight = 0; sight < kSightNames.size() && tier == Tier::shared; ++sight)
    expect_often(coverage.sights[sight], coverage, kSightNames[sight], often);
}

// Half of the seeds are fixed, and half depend on the commit. The first share of each half draws
// programs without faults.
class Seeds : public testing::TestWithParam<std::tuple<std::string_view, uint64_t>> {
 protected:
  const Tier tier_ = static_cast<Tier>(std::ranges::find(kTierNames, std::get<0>(GetParam())) -
                                       kTierNames.begin());
  const uint64_t share_ = std::get<1>(GetParam());
  Coverage coverage_;
  void run_share_of(uint64_t base) {
    run_seeds(base + share_ * kSeeds, {.without_faults = share_ == 0, .tier = tier_}, coverage_);
  }
};
INSTANTIATE_TEST_SUITE_P(
    Drawn, Seeds, testing::Combine(testing::ValuesIn(kTierNames), testing::Range<uint64_t>(0, 4)),
    [](const auto& info) {
      return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param));
    });

TEST_P(Seeds, ThatAreFixedKeepAllPromises) {
  ASSERT_NO_FATAL_FAILURE(run_share_of(1'000'001));
  if (!kCountsWhatIsCovered || share_ == 0) return;
  expect_all_of(coverage_, tier_);
  for (size_t invariant = 1; invariant <= 16; ++invariant)
    EXPECT_GT(coverage_.looks[invariant], 0u) << "I" << invariant << " has looked at nothing";
}

TEST_P(Seeds, OfTheCommitKeepAllPromises) { run_share_of(kFirstSeedOfCommit); }

// The trace depends neither on the addresses of memory nor on what ran before.
TEST(Simulation, OneCaseHasOneTrace) {
  constexpr uint64_t kEvery = 64;
  std::vector<std::unique_ptr<char[]>> ballast;
  for (uint64_t seed = kEvery; seed <= kSeeds; seed += kEvery) {
    const Case drawn = draw(seed, {.tier = static_cast<Tier>(seed / kEvery % kTierNames.size())});
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
