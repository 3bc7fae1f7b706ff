// The ten-line sample, unchanged, under every launcher that is installed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/support/ports.h"
#include "tests/support/scratch_folder.h"
#include "tests/tools/run_program.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

bool is_installed(const std::string& program) {
  std::stringstream path(::getenv("PATH"));
  for (std::string folder; std::getline(path, folder, ':');)
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

using Words = std::vector<std::string>;

Words operator+(Words left, const Words& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

const Words kSample = {TUTTI_TEN_LINES};
const Words kSuppressions = {"LSAN_OPTIONS=print_suppressions=0:suppressions=" TUTTI_LSAN_FILE};

// Expects that rank 0 alone prints the mean of all ranks' numbers.
void expect_mean(const Words& words, const std::string& mean, const Words& variables = {}) {
  Program program(words, variables + kSuppressions);
  EXPECT_EQ(program.finish(60), 0) << program.errors();
  EXPECT_EQ(program.output(), mean + "\n") << program.errors();
}

Words open_mpi() {
  return {"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "4"};
}
Words mpich() { return {"mpiexec.mpich", "-np", "4"}; }

TEST(Launchers, Alone) { expect_mean(kSample, "0"); }

TEST(Launchers, TuttiRun) { expect_mean(Words{TUTTI_RUN, "-np", "4"} + kSample, "[0] 1.5"); }

TEST(Launchers, OpenMpi) {
  if (!is_installed("mpirun.openmpi")) GTEST_SKIP() << "mpirun.openmpi is not installed";
  expect_mean(open_mpi() + kSample, "1.5");
}

TEST(Launchers, Mpich) {
  if (!is_installed("mpiexec.mpich")) GTEST_SKIP() << "mpiexec.mpich is not installed";
  expect_mean(mpich() + kSample, "1.5");
}

// MPI unloads its modules before the process ends, so their leaks have no name for a suppression.
const Words kMpiLeaks = {"ASAN_OPTIONS=detect_leaks=0"};

TEST(Launchers, OpenMpiProgramsThatUseMpiToo) {
  if (!is_installed("mpirun.openmpi")) GTEST_SKIP() << "mpirun.openmpi is not installed";
  for (const char* when : {"before", "after"})
    expect_mean(open_mpi() + Words{TUTTI_MPI_PROGRAM, "libmpi.so.40", when}, "1.5", kMpiLeaks);
}

TEST(Launchers, MpichProgramsThatUseMpiTooNeedAStore) {
  if (!is_installed("mpiexec.mpich")) GTEST_SKIP() << "mpiexec.mpich is not installed";
  const Words words = mpich() + Words{TUTTI_MPI_PROGRAM, "libmpich.so.12", "after"};
  Program refused(words);
  EXPECT_NE(refused.finish(), 0);
  EXPECT_THAT(refused.errors(), HasSubstr("needs the launcher's PMI for itself; give the ranks "
                                          "another place to meet: TUTTI_STORE="));
  const auto folder = testing::TempDir() + "tutti_mpich_" + std::to_string(::getpid());
  expect_mean(words, "1.5", kMpiLeaks + Words{"TUTTI_STORE=file://" + folder});
  std::filesystem::remove_all(folder);
}

// An inner launcher takes precedence over the launcher that started it.
const Words kInner = Words{TUTTI_RUN, "-np", "2"} + kSample;
const Words kPlain = {"NO_COLOR=1"};  // Open MPI gives its ranks a terminal

TEST(Launchers, TuttiRunInsideItself) {
  expect_mean(Words{TUTTI_RUN, "-np", "1"} + kInner, "[0] [0] 0.5", kPlain);
}

TEST(Launchers, TuttiRunInsideOpenMpi) {
  if (!is_installed("mpirun.openmpi")) GTEST_SKIP() << "mpirun.openmpi is not installed";
  expect_mean(Words{"mpirun.openmpi", "--allow-run-as-root", "-np", "1"} + kInner, "[0] 0.5",
              kPlain);
}

TEST(Launchers, TuttiRunInsideMpich) {
  if (!is_installed("mpiexec.mpich")) GTEST_SKIP() << "mpiexec.mpich is not installed";
  expect_mean(Words{"mpiexec.mpich", "-np", "1"} + kInner, "[0] 0.5", kPlain);
}

// When the job has ended, the file of --timeline contains the events of both ranks.
TEST(Launchers, TuttiRunsTimelineIsAFile) {
  const auto file = testing::TempDir() + "tutti_trace_" + std::to_string(::getpid()) + ".json";
  expect_mean(Words{TUTTI_RUN, "-np", "2", "--timeline", file} + kSample, "[0] 0.5");
  std::ifstream stream(file);
  const auto trace = nlohmann::json::parse(stream, nullptr, false);
  std::filesystem::remove(file);
  ASSERT_FALSE(trace.is_discarded()) << file;
  std::set<int> ranks;
  for (const auto& event : trace.is_array() ? trace : trace.at("traceEvents"))
    if (event.dump().find("gradient") != std::string::npos) ranks.insert(event["pid"].get<int>());
  EXPECT_THAT(ranks, testing::ElementsAre(0, 1));
}

// The environment that torchrun sets for each process.
TEST(Launchers, TorchrunsEnvironment) {
  const std::string script =
      "for rank in 1 2 0; do RANK=$rank LOCAL_RANK=$rank \"$0\" & pids=\"$pids $!\"; done; for pid "
      "in "
      "$pids; do wait $pid || exit 1; done";
  expect_mean(Words{"/bin/sh", "-c", script} + kSample, "1",
              {"WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1",
               "MASTER_PORT=" + own_port(), "TORCHELASTIC_RUN_ID=none"});
}

// A program that sets options in code must still use the launcher's settings, in any language.
class SettingsInCode : public testing::TestWithParam<const char*> {
 protected:
  static bool is_python() { return GetParam() == std::string("python"); }
  static Words program() {
    if (is_python()) return {TUTTI_PYTHON, TUTTI_SETTINGS_SCRIPT};
    return {TUTTI_SETTINGS_PROGRAM, GetParam()};
  }
  // The program's settings take precedence over the environment's, which take precedence over
  // defaults.
  static Words variables() {
    return {"TUTTI_BACKEND=shm", "TUTTI_CACHE_CAPACITY=77",
            "PYTHONPATH=" + std::string(TUTTI_PYTHONPATH)};
  }
  static void expect_job(const Words& launcher, const std::string& said, const Words& more = {}) {
    expect_mean(launcher + program(), said, variables() + more);
  }
  // Starts the program three times, with its number in these variables.
  static Words by_hand(const std::string& rank, const std::string& local_rank) {
    return {
        "/bin/sh", "-c",
        "for rank in 1 2 0; do " + rank + "=$rank " + local_rank +
            "=$rank \"$@\" & pids=\"$pids $!\"; done; for pid in $pids; do wait $pid || exit 1; "
            "done",
        "sh"};
  }
};

TEST_P(SettingsInCode, UnderTuttiRun) {
  expect_job({TUTTI_RUN, "-np", "4"}, "[0] 1.5 of 4 by tcp");
}

TEST_P(SettingsInCode, UnderOpenMpi) {
  if (!is_installed("mpirun.openmpi")) GTEST_SKIP() << "mpirun.openmpi is not installed";
  expect_job(open_mpi(), "1.5 of 4 by tcp");
}

TEST_P(SettingsInCode, UnderMpich) {
  if (!is_installed("mpiexec.mpich")) GTEST_SKIP() << "mpiexec.mpich is not installed";
  expect_job(mpich(), "1.5 of 4 by tcp");
}

TEST_P(SettingsInCode, InTorchrunsEnvironment) {
  expect_job(by_hand("RANK", "LOCAL_RANK"), "1 of 3 by tcp",
             {"WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1",
              "MASTER_PORT=" + own_port(), "TORCHELASTIC_RUN_ID=none"});
}

TEST_P(SettingsInCode, InSlurmsEnvironment) {
  const ScratchFolder home;
  expect_job(by_hand("SLURM_PROCID", "SLURM_LOCALID"), "1 of 3 by tcp",
             {"HOME=" + home.path(), "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_NODEID=0",
              "SLURM_STEP_NUM_TASKS=3", "SLURM_STEP_TASKS_PER_NODE=3"});
}

TEST_P(SettingsInCode, AloneItIsOneRank) { expect_job({}, "0 of 1 by tcp"); }

// Python is included if its package is built.
std::vector<const char*> languages() {
  if (std::string(TUTTI_PYTHON).empty()) return {"cpp", "c"};
  return {"cpp", "c", "python"};
}

INSTANTIATE_TEST_SUITE_P(Launchers, SettingsInCode, testing::ValuesIn(languages()),
                         [](const auto& info) { return std::string(info.param); });

// Ranks are started by hand and connect through a folder that all of them can see.
TEST(Launchers, AnyOtherByAFolder) {
  const auto folder = testing::TempDir() + "tutti_launch_" + std::to_string(::getpid());
  const std::string script =
      "for rank in 1 2 0; do TUTTI_RANK=$rank \"$0\" & pids=\"$pids $!\"; done; for pid in $pids; "
      "do "
      "wait $pid || exit 1; done";
  expect_mean(Words{"/bin/sh", "-c", script} + kSample, "1",
              {"TUTTI_SIZE=3", "TUTTI_STORE=file://" + folder});
  std::filesystem::remove_all(folder);
}

TEST(Launchers, AStoreOfOnesOwnUnderMpi) {
  if (!is_installed("mpiexec.mpich")) GTEST_SKIP() << "mpiexec.mpich is not installed";
  expect_mean(mpich() + kSample, "1.5",
              {"TUTTI_STORE=tcp://127.0.0.1:" + own_port(), "TUTTI_SECRET=hush"});
}

TEST(Launchers, SayWhatIsMissing) {
  Program program({"/bin/sh", "-c", std::string("'" TUTTI_TEN_LINES "' 2>&1")},
                  {"PMI_RANK=0", "PMI_SIZE=2"});
  EXPECT_NE(program.finish(), 0);
  EXPECT_THAT(program.output(), HasSubstr("PMI started this process, but PMI_FD is missing"));
}

// One cluster serves all of Slurm's forms, because it is slow to start.
TEST(Launchers, Slurm) {
  const std::string script = R"SH(
    try() { echo "$* -> $("$@" "$0")"; }
    try srun -t 1 -n 4
    try srun -t 1 -n 4 --mpi=pmi2
    try srun -t 1 -n 4 --mpi=pmix
    echo "in code -> $(srun -t 1 -n 4 --mpi=pmix "$1" cpp)"
    try srun -t 1 -Q -N 2 -n 5
    try srun -t 1 -Q -N 2 -n 5 --mpi=pmi2
    TUTTI_SECRET=hush try srun -t 1 -n 4
    { echo '#!/bin/sh'; echo "'$0'"; echo srun -n 2 "'$0'"; } > $SLURM_BED/batch.sh
    sbatch -Q -W -t 1 -n 4 -o $SLURM_BED/batch.out $SLURM_BED/batch.sh
    echo "sbatch ->" $(cat $SLURM_BED/batch.out)
    ls -A $HOME/.tutti)SH";
  const auto home = testing::TempDir() + "tutti_home_" + std::to_string(::getpid());
  std::filesystem::create_directory(home);
  Program program(
      Words{TUTTI_SLURM_BED, "/bin/sh", "-c", script} + kSample + Words{TUTTI_SETTINGS_PROGRAM},
      Words{"TUTTI_CACHE_CAPACITY=77", "HOME=" + home} + kSuppressions);
  const int code = program.finish(100);
  std::filesystem::remove_all(home);
  if (code == 77) GTEST_SKIP() << program.errors();
  EXPECT_EQ(code, 0) << program.errors();
  // The last command lists the remaining files by which ranks connected: there are none.
  EXPECT_EQ(program.output(),
            "srun -t 1 -n 4 -> 1.5\n"
            "srun -t 1 -n 4 --mpi=pmi2 -> 1.5\n"
            "srun -t 1 -n 4 --mpi=pmix -> 1.5\n"
            "in code -> 1.5 of 4 by tcp\n"
            "srun -t 1 -Q -N 2 -n 5 -> 2\n"
            "srun -t 1 -Q -N 2 -n 5 --mpi=pmi2 -> 2\n"
            "srun -t 1 -n 4 -> 1.5\n"
            "sbatch -> 0 0.5\n")
      << program.errors();
}

}  // namespace
}  // namespace tutti::test
