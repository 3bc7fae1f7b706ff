// The tools with the state that other programs may leave to them: signals ignored or blocked,
// streams closed, an unusual umask, few descriptors.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/support/scratch_folder.h"
#include "tests/tools/run_program.h"
#include "tutti/core/communicator.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

struct State {
  const char* name;
  std::function<void()> begin;  // runs in the child before the tool
};

void ignore(int number) { ::signal(number, SIG_IGN); }

void block_all() {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
}

void allow_descriptors(rlim_t count) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = count;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Standard output and error stay open, because the tests read them. InheritedStreams closes them
// too.
std::vector<State> states() {
  return {{"SigchldIgnored", [] { ignore(SIGCHLD); }},
          {"SigpipeIgnored", [] { ignore(SIGPIPE); }},
          {"AllIgnored",
           [] {
             for (int n = 1; n < NSIG; ++n) ignore(n);
           }},
          {"AllBlocked", block_all},
          {"AllIgnoredAndBlocked",
           [] {
             for (int n = 1; n < NSIG; ++n) ignore(n);
             block_all();
           }},
          {"StdinClosed", [] { ::close(0); }},
          {"Umask777", [] { ::umask(0777); }},
          {"Umask077", [] { ::umask(0077); }},
          {"TenDescriptors", [] { allow_descriptors(10); }},
          {"OutputDoesNotBlock", [] {
             for (const int stream : {1, 2})
               ::fcntl(stream, F_SETFL, ::fcntl(stream, F_GETFL) | O_NONBLOCK);
           }}};
}

class Inherited : public testing::TestWithParam<State> {
 protected:
  static std::vector<std::string> ranks(const std::string& script) {
    return {TUTTI_RUN, "-np", "2", "/bin/sh", "-c", script};
  }
};

TEST_P(Inherited, RanksThatEndWellEndTheJob) {
  Program program(ranks("echo rank $TUTTI_RANK"), {}, GetParam().begin);
  EXPECT_EQ(program.finish(), 0) << program.errors();
  EXPECT_THAT(program.output(), HasSubstr("[0] rank 0\n"));
  EXPECT_THAT(program.output(), HasSubstr("[1] rank 1\n"));
  EXPECT_EQ(program.errors(), "");
}

TEST_P(Inherited, ARankThatFailsEndsItWithItsCode) {
  Program program(ranks("test $TUTTI_RANK = 0 || exit 5; sleep 30"), {}, GetParam().begin);
  EXPECT_EQ(program.finish(), 5) << program.errors();
  EXPECT_THAT(program.errors(), HasSubstr("ended with code 5"));
}

TEST_P(Inherited, SigtermEndsIt) {
  Program program(ranks("echo ready; while :; do sleep 0.02; done"), {}, GetParam().begin);
  ASSERT_TRUE(program.wait_for("[0] ready") && program.wait_for("[1] ready"));
  program.signal(SIGTERM);
  EXPECT_EQ(program.finish(), 128 + SIGTERM) << program.errors();
}

TEST_P(Inherited, RanksGetSignalsAsAShellGivesThem) {
  Program program({TUTTI_RUN, "-np", "1", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"}, {},
                  GetParam().begin);
  EXPECT_EQ(program.finish(), 0) << program.errors();
  const bool hangup = std::string(GetParam().name).starts_with("AllIgnored");
  EXPECT_EQ(program.output(), fmt::format("[0] SigBlk:\t{:016x}\n[0] SigIgn:\t{:016x}\n", 0,
                                          hangup ? 1 << (SIGHUP - 1) : 0));
}

TEST_P(Inherited, TheDoctorFindsABackend) {
  Program program({TUTTI_DOCTOR, "--backend", "shm", "--no-measure"}, {}, GetParam().begin);
  EXPECT_EQ(program.finish(), 0) << program.output() << program.errors();
}

TEST_P(Inherited, TheBenchmarkMeasures) {
  Program program({TUTTI_BENCH, "allreduce", "--repetitions", "1", "--iterations", "1", "--warmup",
                   "1", "--bytes", "4K"},
                  {}, GetParam().begin);
  EXPECT_EQ(program.finish(), 0) << program.output() << program.errors();
  EXPECT_THAT(program.output(), HasSubstr("shm"));
}

// Starts ranks without tutti-run, which would reset the inherited state.
TEST_P(Inherited, ALibraryInAnyProgramWorks) {
  if (GetParam().name == std::string("TenDescriptors")) return;  // the library raises no limit
  const ScratchFolder folder;
  const auto rank = [&](int number) -> std::vector<std::string> {
    return {"TUTTI_CACHE_CAPACITY=77", "TUTTI_SIZE=2", fmt::format("TUTTI_RANK={}", number),
            "TUTTI_STORE=file://" + folder.path() + "/store"};
  };
  Program other({TUTTI_SETTINGS_PROGRAM, "cpp"}, rank(1), GetParam().begin);
  Program first({TUTTI_SETTINGS_PROGRAM, "cpp"}, rank(0), GetParam().begin);
  EXPECT_EQ(first.finish(), 0) << first.errors();
  EXPECT_EQ(other.finish(), 0) << other.errors();
  EXPECT_EQ(first.output(), "0.5 of 2 by tcp\n");
}

INSTANTIATE_TEST_SUITE_P(Tools, Inherited, testing::ValuesIn(states()),
                         [](const auto& info) { return std::string(info.param.name); });

// If standard error is closed, a connection could get its descriptor, and log lines would be
// written into the connection.
TEST(InheritedStreams, TheLibraryOpensThoseThatAreMissing) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int stream : {0, 1, 2}) ::close(stream);
    const auto comm = Communicator::create({.size = 1});
    char file[64] = "";
    int right = 0;
    for (const int stream : {0, 1, 2})
      if (::readlink(fmt::format("/proc/self/fd/{}", stream).c_str(), file, sizeof file) > 0)
        right += file == std::string("/dev/null");
    ::_exit(right);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
}

// The ranks get their streams from the launcher.
TEST(InheritedStreams, NoneIsNeeded) {
  const auto close_all = [] {
    for (const int stream : {0, 1, 2}) ::close(stream);
  };
  Program well({TUTTI_RUN, "-np", "2", "/bin/sh", "-c", "echo hello; echo hello >&2"}, {},
               close_all);
  EXPECT_EQ(well.finish(), 0);
  Program badly({TUTTI_RUN, "-np", "2", "/bin/sh", "-c", "echo hello; exit 4"}, {}, close_all);
  EXPECT_EQ(badly.finish(), 4);
}

TEST(InheritedLimits, RanksGetThemBack) {
  Program program({TUTTI_RUN, "-np", "1", "/bin/sh", "-c", "umask; ulimit -Sn"}, {}, [] {
    ::umask(0777);
    allow_descriptors(77);
  });
  EXPECT_EQ(program.finish(), 0);
  EXPECT_EQ(program.output(), "[0] 0777\n[0] 77\n");
}

// With nohup, neither the launcher nor its ranks end by SIGHUP.
TEST(InheritedSignals, AHangupThatIsIgnoredEndsNothing) {
  Program program({TUTTI_RUN, "-np", "1", "/bin/sh", "-c", "echo ready; sleep 1; echo survived"},
                  {}, [] { ignore(SIGHUP); });
  ASSERT_TRUE(program.wait_for("ready"));
  program.signal(SIGHUP);
  EXPECT_EQ(program.finish(), 0) << program.errors();
  EXPECT_THAT(program.output(), HasSubstr("survived"));
}

}  // namespace
}  // namespace tutti::test
