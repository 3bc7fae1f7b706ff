// Several ranks die within moments, under tutti-run: while they train, while the others shrink and
// connect again, or while all connect for the first time. All survivors must end in one
// communicator. FAULT_RUNS sets the number of runs of each case (default 3), FAULT_SEED the random
// seed.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <regex>
#include <string>
#include <vector>

namespace {

constexpr int kRanks = 5;

int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::max(1, std::atoi(text));
}

std::string output_of(const std::string& command) {
  std::string output;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      ::popen(("timeout -k 1 60 " + command + " 2>&1").c_str(), "r"), ::pclose);
  char buffer[4096];
  for (size_t size; (size = std::fread(buffer, 1, sizeof buffer, pipe.get())) > 0;)
    output.append(buffer, size);
  return output;
}

struct Kill {
  int rank;
  int microseconds;
};

class Deaths : public testing::TestWithParam<std::string> {
 protected:
  Deaths()
      : seed_(static_cast<unsigned>(
            number_from("FAULT_SEED", static_cast<int>(std::random_device()() & 0x7fffffff)))),
        random_(seed_) {
    RecordProperty("seed", std::to_string(seed_));
    std::printf("seed %u\n", seed_);
  }

  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  // Draws different ranks. The first dies within `first_within` microseconds, the others up to 100
  // ms after it. With `rank_zero`, rank 0 (which coordinates) is one of them.
  std::vector<Kill> draw_kills(int count, bool rank_zero, int first_within) {
    std::vector<int> ranks(kRanks);
    std::iota(ranks.begin(), ranks.end(), 0);
    std::shuffle(ranks.begin(), ranks.end(), random_);
    const auto zero = std::find(ranks.begin(), ranks.end(), 0);
    if (rank_zero) std::iter_swap(zero, ranks.begin() + draw(count));
    const int first = draw(first_within);
    std::vector<Kill> kills;
    for (int i = 0; i < count; ++i)
      kills.push_back({ranks[static_cast<size_t>(i)], first + (i == 0 ? 0 : draw(100'000))});
    return kills;
  }

  // Runs one job and returns its output.
  std::string check(const std::string& since, const std::vector<Kill>& kills) {
    std::vector<std::string> words;
    std::vector<int> survivors(kRanks);
    std::iota(survivors.begin(), survivors.end(), 0);
    for (const auto& kill : kills) {
      words.push_back(fmt::format("{}@{}", kill.rank, kill.microseconds));
      std::erase(survivors, kill.rank);
    }
    const auto arguments = fmt::format("{} {}", since, fmt::join(words, ","));
    const auto output =
        output_of(fmt::format("env TUTTI_BACKEND={} TUTTI_HOST={} '{}' -np {} --keep-going '{}' {}",
                              GetParam(), "one", TUTTI_RUN, kRanks, DYING_RANK, arguments));
    SCOPED_TRACE(fmt::format("dying_rank {}\n{}", arguments, output));
    EXPECT_EQ(output.find("unexpected"), std::string::npos);
    const auto members = fmt::format("[{}]", fmt::join(survivors, " "));
    for (size_t i = 0; i < survivors.size(); ++i)
      EXPECT_THAT(output, testing::HasSubstr(
                              fmt::format("rank {} ends as {} of {}\n", survivors[i], i, members)));
    return output;
  }

  const unsigned seed_;
  std::mt19937 random_;
};

INSTANTIATE_TEST_SUITE_P(Backends, Deaths, testing::Values("shm", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(Deaths, TwoAndThreeAtRandomMoments) {
  const int runs = number_from("FAULT_RUNS", 3);
  for (int run = 0; run < runs && !HasFailure(); ++run)
    check("run", draw_kills(2 + run % 2, run / 2 % 2 == 0, 100'000));
}

// The second rank dies while the others agree on the first death, or while they connect without the
// dead rank.
TEST_P(Deaths, TheSecondWhileTheOthersShrink) {
  const int runs = number_from("FAULT_RUNS", 3);
  for (int run = 0; run < runs && !HasFailure(); ++run) {
    auto kills = draw_kills(2 + run % 2, run % 2 == 1, 20'000);
    for (size_t i = 1; i < kills.size(); ++i)
      kills[i].microseconds = kills[0].microseconds + draw(15'000);
    check("run", kills);
  }
}

// Each survivor gets an error that names the dead rank, and the call after it works.
TEST_P(Deaths, OneWhileAllConnectAtFirst) {
  const int runs = number_from("FAULT_RUNS", 3);
  for (int run = 0; run < runs && !HasFailure(); ++run) {
    const auto kills = draw_kills(1, run % 2 == 0, 80'000);
    const auto output = check("start", kills);
    const std::regex blame("names (-?\\d+): ");
    for (std::sregex_iterator match(output.begin(), output.end(), blame), end; match != end;
         ++match)
      EXPECT_EQ((*match)[1], std::to_string(kills[0].rank)) << output;
  }
}

// A limit of one rank's own process is its failure. Its peers get that error too.
TEST_P(Deaths, ARankWithoutFilesSaysSoAndAllHearIt) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan, built together with ASan, looks at objects through a pipe of its own, "
                  "which a rank without files cannot make";
#endif
  const auto output = output_of(
      fmt::format("env TUTTI_BACKEND={} TUTTI_CONNECT_TIMEOUT=20 '{}' -np {} --keep-going sh -c "
                  "'test $TUTTI_RANK = 2 && ulimit -n 12; exec \"$0\" start 99@0' '{}'",
                  GetParam(), TUTTI_RUN, kRanks, DYING_RANK));
  SCOPED_TRACE(output);
  const std::string limit = "this process may have 12 files open; allow more with ulimit -n";
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::regex heard(fmt::format("rank {} could not create: names {}: [^\n]*{}", rank,
                                       rank == 2 ? "(2|-1)" : "2", limit));
    EXPECT_TRUE(std::regex_search(output, heard)) << "rank " << rank;
  }
}

}  // namespace
