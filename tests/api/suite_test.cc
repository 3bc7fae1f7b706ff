// Runs the suite as a whole: all cases one after another in one job. Checks the table of required
// cases.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <regex>
#include <set>

#include "tests/api/case.h"
#include "tests/support/ranks.h"
#include "tutti/backends/plugins.h"

namespace tutti::test {
namespace {

// Each case must leave the communicator usable for the next one, whatever plans and errors it went
// through.
void run_all(Communicator& comm) {
  for (const auto& one : cases()) {
    SCOPED_TRACE(one.suite + "." + one.name);
    one.run(comm);
    if (testing::Test::HasFailure()) return;
  }
}

// The thread sanitizer makes the suite 26 times as long.
#ifdef __SANITIZE_THREAD__
constexpr double kSeconds = 500;
#else
constexpr double kSeconds = 100;
#endif

TEST(WholeSuite, OneJobOfTwoThreads) { run_threads(2, run_all, {}, kSeconds); }
TEST(WholeSuite, OneJobOfFiveThreads) { run_threads(5, run_all, {}, kSeconds); }
TEST(WholeSuite, OneJobOfProcesses) { run_processes(2, run_all, {}, kSeconds); }
TEST(WholeSuite, OneJobOnTwoUnevenHosts) { run_hosts({0, 0, 0, 1}, run_all, {}, kSeconds); }
TEST(WholeSuite, OneJobOnThreeHosts) { run_hosts({0, 1, 2, 2}, run_all, {}, kSeconds); }

// The same suite over backends that are not chosen by default.
class WholeSuiteOver : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    if (GetParam().find("ucx") != std::string::npos)
      GTEST_SKIP() << "the thread sanitizer does not see how UCX orders its memory";
#endif
    try {
      load_backends(backend(), {}, {});
    } catch (const Error& error) {
      GTEST_SKIP() << "backend " << GetParam() << " is not built here";
    }
  }
  // `choice` is the default backend together with tcp for the sizes of the list below.
  bool is_choice() const { return GetParam() == "choice"; }
  std::string backend() const { return is_choice() ? "auto" : GetParam(); }
  bool has_levels() const { return GetParam().find('+') != std::string::npos; }
  void choose(Options& options) const {
    options.backend = backend();
    if (is_choice())
      options.algorithms =
          "allreduce:32-1k=tcp/auto,4k-inf=tcp/ring;broadcast:0-inf=tcp/auto;"
          "alltoall:0-inf=tcp/auto;allgather:64-inf=tcp/auto";
  }
  Tune tune_hosts() const {
    return [this](Options& options) { choose(options); };
  }
  // The ranks run on one host. For two levels, two host names split it.
  Tune tune() const {
    return [this](Options& options) {
      choose(options);
      if (has_levels()) options.host = options.rank == 0 ? "first" : "second";
    };
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, WholeSuiteOver,
                         testing::Values("tcp", "gloo", "ucx", "shm+tcp", "shm+ucx", "choice"),
                         [](const auto& info) {
                           auto name = info.param;
                           std::replace(name.begin(), name.end(), '+', '_');
                           return name;
                         });

TEST_P(WholeSuiteOver, Threads) { run_threads(3, run_all, tune(), kSeconds); }
TEST_P(WholeSuiteOver, Processes) {
  run_processes(has_levels() ? 3 : 2, run_all, tune(), kSeconds);
}
TEST_P(WholeSuiteOver, TwoHosts) { run_hosts({0, 0, 1}, run_all, tune_hosts(), kSeconds); }

// Expects the size, the local rank, the local size and the number of hosts of a communicator.
void expect_place(const Communicator& comm, int size, int local_rank, int local_size, int hosts) {
  EXPECT_EQ(comm.size(), size);
  EXPECT_EQ(comm.local_rank(), local_rank) << "rank " << comm.rank();
  EXPECT_EQ(comm.local_size(), local_size) << "rank " << comm.rank();
  EXPECT_EQ(comm.hosts(), hosts);
}

TEST(Place, OfThreadsAndProcesses) {
  const auto check = [](Communicator& comm) {
    expect_place(comm, 3, comm.rank(), 3, 1);
    const auto pair = comm.split(comm.rank() == 1 ? 1 : 0);
    if (comm.rank() == 1)
      expect_place(*pair, 1, 0, 1, 1);
    else
      expect_place(*pair, 2, comm.rank() / 2, 2, 1);
  };
  run_threads(3, check);
  run_processes(3, check);
}

TEST(Place, OnThreeHostsAndInTheirParts) {
  run_hosts({0, 1, 0, 2, 1, 0}, [](Communicator& comm) {
    const int local_rank[] = {0, 0, 1, 0, 1, 2}, local_size[] = {3, 2, 3, 1, 2, 3};
    const auto rank = static_cast<size_t>(comm.rank());
    expect_place(comm, 6, local_rank[rank], local_size[rank], 3);
    // Ranks 0 and 2 share a host, and so do ranks 1 and 4. Ranks 3 and 5 are on two hosts.
    const int color[] = {0, 1, 0, 2, 1, 2};
    const auto pair = comm.split(color[rank]);
    if (color[rank] == 2)
      expect_place(*pair, 2, 0, 1, 2);
    else
      expect_place(*pair, 2, comm.rank() < 2 ? 0 : 1, 2, 1);
  });
}

struct Row {
  std::string text, test;
};

std::vector<Row> read_table() {
  std::ifstream file(TUTTI_SOURCE_DIR "/tests/horovod_cases.csv");
  std::vector<Row> rows;
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "case,feature,test");
  while (std::getline(file, line)) {
    const auto second = line.find(',', line.find(',') + 1);
    if (second == line.npos) {
      ADD_FAILURE() << "not three columns: " << line;
      continue;
    }
    rows.push_back({line.substr(0, line.find(',')), line.substr(second + 1)});
  }
  return rows;
}

// Returns the names of all tests in the sources, each once: TEST(Suite, Name) and the like.
std::set<std::string> tests_of_the_tree() {
  static const std::regex kTest("^TEST(?:_F|_P)?\\((\\w+), (\\w+)\\)");
  std::set<std::string> names;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(TUTTI_SOURCE_DIR "/tests")) {
    if (entry.path().extension() != ".cc") continue;
    std::ifstream file(entry.path());
    std::smatch match;
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("TEST") && std::regex_search(line, match, kTest))
        names.insert(match.str(1) + "." + match.str(2));
  }
  return names;
}

// Every row names a case of this program, which runs here, or a test of another program, or the
// reason why there is none.
TEST(HorovodCases, EachNamedTestExistsAndRuns) {
  std::map<std::string, const Case*> known;
  for (const auto& one : cases()) known[one.suite + "." + one.name] = &one;
  const auto elsewhere = tests_of_the_tree();
  const auto rows = read_table();
  EXPECT_GE(rows.size(), 100u);
  std::set<std::string> ran;
  for (const auto& [text, test] : rows) {
    SCOPED_TRACE(text);
    if (test.starts_with("n/a: ")) continue;
    if (!known.contains(test)) {
      EXPECT_TRUE(elsewhere.contains(test)) << test << " is neither a case nor a test";
      continue;
    }
    if (!ran.insert(test).second) continue;
    int ranks = 0;
    std::mutex mutex;
    run_threads(2, [&](Communicator& comm) {
      known[test]->run(comm);
      const std::lock_guard lock(mutex);
      ++ranks;
    });
    EXPECT_EQ(ranks, 2) << test;
  }
  EXPECT_GE(ran.size(), 70u);
}

}  // namespace
}  // namespace tutti::test
