// The daily run of the fuzzers. Each harness must accept its seeds. It must accept or refuse a few
// hundred mutations of them, always the same ones, and do nothing else.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/fuzz/harness.h"

namespace tutti::fuzz {
namespace {

using Random = std::mt19937;

size_t below(Random& random, size_t bound) { return bound == 0 ? 0 : random() % bound; }

// Makes one change such as damaged memory, a cut connection or another version would cause.
void change(std::string& input, const std::vector<std::string>& seeds, Random& random) {
  constexpr uint64_t kNumbers[] = {
      0,          1,          0x7f,    0x80,       0xff,       0x7fff,     0xffff,     0x7fffffff,
      0x80000000, 0xffffffff, 1 << 20, 1ULL << 40, 1ULL << 62, ~0ULL >> 1, 1ULL << 63, ~0ULL};
  const size_t at = below(random, input.size() + 1);
  const size_t count = std::min(below(random, 16) + 1, input.size() - at);
  switch (below(random, 8)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(random, 8)));
      break;
    case 1:
      if (at < input.size()) input[at] = static_cast<char>(random());
      break;
    case 2: {
      const uint64_t number = kNumbers[below(random, std::size(kNumbers))];
      const size_t bytes = std::min(size_t{1} << below(random, 4), input.size() - at);
      for (size_t i = 0; i < bytes; ++i) input[at + i] = static_cast<char>(number >> (8 * i));
      break;
    }
    case 3:
      input.erase(at, count);
      break;
    case 4:
      // Repeats a part, like a message that arrives twice.
      input.insert(at, input.substr(below(random, input.size()), below(random, input.size()) + 1));
      break;
    case 5:
      for (size_t i = 0; i < count; ++i) input.insert(at, 1, static_cast<char>(random()));
      break;
    case 6:
      input.resize(at);
      break;
    default: {
      const auto& other = seeds[below(random, seeds.size())];
      input = input.substr(0, at) + other.substr(below(random, other.size() + 1));
    }
  }
}

class Parsers : public testing::TestWithParam<Harness> {};

TEST_P(Parsers, TakeOrRefuseWhatIsDamaged) {
  const auto& harness = GetParam();
  const auto seeds = harness.seeds();
  ASSERT_FALSE(seeds.empty());
  for (size_t i = 0; i < seeds.size(); ++i) {
    ASSERT_LE(seeds[i].size(), harness.longest) << "seed " << i;
    EXPECT_TRUE(accepts(harness, seeds[i])) << "seed " << i;
  }
  constexpr unsigned kSeed = 20261123;
  constexpr int kMutations = 400;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  int accepted = 0, refused = 0;
  for (int i = 0; i < kMutations; ++i) {
    auto input = seeds[static_cast<size_t>(i) % seeds.size()];
    for (size_t changes = below(random, 3) + 1; changes > 0; --changes)
      change(input, seeds, random);
    input.resize(std::min(input.size(), harness.longest));
    try {
      ++(accepts(harness, input) ? accepted : refused);
    } catch (const std::exception& finding) {
      ADD_FAILURE() << "mutation " << i << ", " << testing::PrintToString(input) << ": "
                    << finding.what();
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

INSTANTIATE_TEST_SUITE_P(All, Parsers, testing::ValuesIn(harnesses()),
                         [](const auto& info) { return info.param.name; });

TEST(Fuzzing, MemoryFarAboveTheInputIsAFinding) {
  const Harness greedy{"greedy",
                       [](std::string_view) { return std::string(1 << 22, 'x').size() > 0; },
                       [] { return std::vector<std::string>{}; }};
  EXPECT_THROW(accepts(greedy, "a"), Finding);
}

}  // namespace
}  // namespace tutti::fuzz
