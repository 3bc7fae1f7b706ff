// Ranks in containers: separate namespaces with few files in them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/ports.h"
#include "tests/tools/run_program.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

class Containers : public testing::Test {
 protected:
  void SetUp() override {
    Program probe({"unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"});
    if (probe.finish() != 0) GTEST_SKIP() << "no namespaces can be made here: " << probe.errors();
  }
};

// Runs a command in a separate container with a /dev/shm of this size.
Words contained(const std::string& shm_bytes, const std::string& command) {
  return {"unshare",
          "--mount",
          "--pid",
          "--fork",
          "--kill-child",
          "--mount-proc",
          "sh",
          "-euc",
          "mount -t tmpfs -o size=" + shm_bytes + " tmpfs /dev/shm; " + command};
}

// The paths are quoted for a shell.
const std::string kRun = "'" TUTTI_RUN "'";
const std::string kBench =
    "'" TUTTI_BENCH "' allreduce --repetitions 1 --iterations 1 --warmup 1 --json - --bytes ";

// Finds the row that rank 0 printed among other lines.
nlohmann::json row_of(const std::string& output) {
  const auto begin = output.find('{');
  if (begin == std::string::npos) return {};
  return nlohmann::json::parse(output.substr(begin, output.find('\n', begin) - begin), nullptr,
                               false);
}

void expect_right(const std::string& output, const std::string& transport) {
  const auto row = row_of(output);
  ASSERT_TRUE(row.is_object()) << output;
  EXPECT_EQ(row["transport"], transport);
  EXPECT_EQ(row["wrong"], 0);
}

// Buffers, arenas and rings are memfds, which the size of /dev/shm does not limit.
TEST_F(Containers, MoreThanDevShmHoldsIsShared) {
  for (const auto* way : {"blocking", "arena"}) {
    Program program(contained("64m", kRun + " -np 2 --no-prefix " + kBench + "96M --way " + way +
                                         "; echo left $(ls /dev/shm)."));
    EXPECT_EQ(program.finish(60), 0) << program.errors();
    expect_right(program.output(), "shm");
    EXPECT_THAT(program.output(), HasSubstr("left ."));
  }
}

TEST_F(Containers, UcxSaysWhatAFullDevShmLacks) {
  if (!TUTTI_HAS_UCX) GTEST_SKIP() << "backend ucx is not built here";
  const auto run = kRun + " -np 2 --no-prefix " + kBench;
  Program enough(contained("64m", run + "96M --backend ucx"));
  EXPECT_EQ(enough.finish(60), 0) << enough.errors();
  expect_right(enough.output(), "ucx");
  Program full(contained("64k", run + "1M --backend ucx"));
  EXPECT_EQ(full.finish(60), 1);
  EXPECT_THAT(full.errors(),
              HasSubstr("it needs room in /dev/shm (df /dev/shm): give the container more "
                        "(--shm-size), or another folder in UCX_POSIX_DIR"));
  Program elsewhere(
      contained("64k", "UCX_POSIX_DIR=" + std::filesystem::temp_directory_path().string() + " " +
                           run + "1M --backend ucx"));
  EXPECT_EQ(elsewhere.finish(60), 0) << elsewhere.errors();
  expect_right(elsewhere.output(), "ucx");
}

TEST_F(Containers, NobodyNeedsToTraceAnother) {
  for (const std::string backend : {"shm", "ucx"}) {
    if (backend == "ucx" && !TUTTI_HAS_UCX) continue;
    Program program(contained("64m", "setpriv --bounding-set=-sys_ptrace --inh-caps=-sys_ptrace " +
                                         kRun + " -np 2 --no-prefix " + kBench + "4M --backend " +
                                         backend));
    EXPECT_EQ(program.finish(60), 0) << program.errors();
    expect_right(program.output(), backend);
  }
}

Words rank_of_two(int rank) {
  return {"TUTTI_RANK=" + std::to_string(rank), "TUTTI_SIZE=2", "TUTTI_SERVE_STORE=1",
          "TUTTI_STORE=tcp://127.0.0.1:" + own_port(), "TUTTI_SECRET=between containers"};
}

// Each rank is process 1 of its own PID namespace.
TEST_F(Containers, RanksInPidNamespacesOfTheirOwnShareMemory) {
  Program other(contained("64m", "exec " + kBench + "4M"), rank_of_two(1));
  Program first(contained("64m", "exec " + kBench + "4M"), rank_of_two(0));
  EXPECT_EQ(first.finish(60), 0) << first.errors();
  EXPECT_EQ(other.finish(60), 0) << other.errors();
  expect_right(first.output(), "shm");
}

// Runs a command with all the restrictions of a container at the same time.
Words in_a_root(const std::string& command) {
  return {"bash", TUTTI_CONTAINER_ROOT, TUTTI_BUILD_DIR, command};
}

TEST_F(Containers, ARootOfItsOwnHoldsAJob) {
  Program program(
      in_a_root("before=$(ls -A /dev/shm /tmp); echo process $$; df -k /dev/shm; grep -E "
                "'CapEff|CapBnd' /proc/$$/status; " +
                kRun + " -np 2 --no-prefix " + kBench +
                "96M; test \"$(ls -A /dev/shm /tmp)\" = \"$before\" && echo nothing left"));
  EXPECT_EQ(program.finish(60), 0) << program.errors();
  EXPECT_THAT(program.output(), HasSubstr("process 1\n"));
  EXPECT_THAT(program.output(), testing::ContainsRegex("tmpfs +65536 "));
  EXPECT_THAT(program.output(), HasSubstr("CapEff:\t0000000000000000\nCapBnd:\t0000000000000000"));
  expect_right(program.output(), "shm");
  EXPECT_THAT(program.output(), HasSubstr("nothing left\n"));
}

TEST_F(Containers, RanksInRootsOfTheirOwnShareMemory) {
  Program other(in_a_root("exec " + kBench + "96M"), rank_of_two(1));
  Program first(in_a_root("exec " + kBench + "96M"), rank_of_two(0));
  EXPECT_EQ(first.finish(60), 0) << first.errors();
  EXPECT_EQ(other.finish(60), 0) << other.errors();
  expect_right(first.output(), "shm");
}

// Neither rank can see the other's process.
TEST_F(Containers, ADeathInAnotherRootIsHeard) {
  const std::string bench = "'" TUTTI_BENCH "' allreduce --repetitions 1 --iterations 100000000";
  Program other(in_a_root("exec timeout --signal=KILL 3 " + bench), rank_of_two(1));
  Program first(in_a_root("exec " + bench), rank_of_two(0));
  EXPECT_EQ(first.finish(60), 1);
  EXPECT_THAT(first.errors(), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace tutti::test
