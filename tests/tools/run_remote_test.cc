// tutti-run with other hosts: through scripts that replace ssh, and through real network
// namespaces.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/network_namespaces.h"
#include "tests/tools/run_program.h"
#include "tutti/base/text.h"
#include "tutti/core/watch/death.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

std::vector<std::string> sorted_lines(const std::string& text) {
  auto lines = split_text(text, '\n');
  std::sort(lines.begin(), lines.end());
  return lines;
}

// A folder with a space in its name, for the scripts of this test.
class RemoteTest : public testing::Test {
 protected:
  RemoteTest() : folder_(testing::TempDir() + fmt::format("tutti remote {}", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~RemoteTest() override { std::filesystem::remove_all(folder_); }

  std::string script(const std::string& name, const std::string& body) {
    const auto path = testing::TempDir() + fmt::format("tutti_{}_{}", name, ::getpid());
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    ::chmod(path.c_str(), 0700);
    scripts_.push_back(path);
    return path;
  }
  // Behaves like ssh: joins the words to one line for a shell on the host, which first prints a
  // greeting.
  std::string shell() { return script("shell", "shift; echo Welcome; exec sh -c \"$*\""); }

  std::vector<std::string> run(const std::string& hosts, const std::string& remote_shell,
                               const std::string& body) {
    return {TUTTI_RUN,    "--interface", "127.0.0.1",          "--hosts", hosts, "--rsh",
            remote_shell, "--env",       "WORD=it's \"a\" $b", "/bin/sh", "-c",  body};
  }

  const std::string folder_;
  std::vector<std::string> scripts_;

  void TearDown() override {
    for (const auto& path : scripts_) std::filesystem::remove(path);
  }
};

TEST_F(RemoteTest, RanksGetTheirPlaceWordsAndFolder) {
  for (const auto& remote_shell : {shell(), script("plain", "shift; exec \"$@\"")}) {
    auto words = run("a:2,b,localhost:1", remote_shell,
                     "echo $TUTTI_RANK $TUTTI_LOCAL_RANK/$TUTTI_LOCAL_SIZE \"$WORD\" \"$(pwd)\"; "
                     "echo to errors >&2");
    words.insert(words.begin(), {"env", "-C", folder_});
    Program program(words);
    EXPECT_EQ(program.finish(), 0) << program.errors();
    const auto where = " it's \"a\" $b " + std::filesystem::canonical(folder_).string();
    for (const char* place : {"[0] 0 0/2", "[1] 1 1/2", "[2] 2 0/1", "[3] 3 0/1"})
      EXPECT_THAT(sorted_lines(program.output()), Contains(place + where));
    EXPECT_THAT(sorted_lines(program.errors()), Contains("[2] to errors"));
  }
}

TEST_F(RemoteTest, GetsTheSecretByStandardInputOnly) {
  Program program(run("a,b", shell(),
                      "cat /proc/self/fd/$TUTTI_SECRET_FD; echo; tr '\\0' ' ' < "
                      "/proc/$PPID/cmdline; echo; env | grep -c SECRET"));
  EXPECT_EQ(program.finish(), 0);
  std::string secret;
  for (const auto& line : split_text(program.output(), '\n'))
    if (line.size() == 68 && line.starts_with("[0]")) secret = line.substr(4);
  ASSERT_EQ(secret.size(), 64u) << program.output();
  EXPECT_THAT(program.output(), HasSubstr("[1] " + secret));
  EXPECT_THAT(program.output(), HasSubstr("tutti-run --remote-rank"));
  EXPECT_THAT(program.output(), HasSubstr("[0] 1\n"));
}

TEST_F(RemoteTest, DeathsAreToldWithPidAndSignal) {
  Program program(run("a,b", shell(),
                      "test $TUTTI_RANK = 0 && exec " TUTTI_STORE_PROBE " deaths/0; echo pid $$; "
                      "kill -9 $$"));
  EXPECT_EQ(program.finish(), 137);
  std::string record, pid;
  for (const auto& line : split_text(program.output(), '\n')) {
    if (line.starts_with("[0] rank=")) record = line.substr(4);
    if (line.starts_with("[1] pid ")) pid = line.substr(8);
  }
  const auto death = decode_death(record);
  ASSERT_TRUE(death) << program.output() << program.errors();
  EXPECT_EQ(death->who.rank, 1);
  EXPECT_EQ(death->signal, 9);
  EXPECT_EQ(death->host, "b");
  EXPECT_EQ(std::to_string(death->pid), pid);
  EXPECT_THAT(program.errors(),
              HasSubstr("rank 1 (host b, pid " + pid + ") was killed by signal 9"));
}

TEST_F(RemoteTest, SignalsArePassedOn) {
  Program program(run("a,b", shell(),
                      "trap 'echo got it; exit 0' USR1; echo ready; while :; do sleep 0.02; done"));
  ASSERT_TRUE(program.wait_for("[0] ready") && program.wait_for("[1] ready"));
  program.signal(SIGUSR1);
  EXPECT_EQ(program.finish(), 0);
  EXPECT_THAT(program.output(), AllOf(HasSubstr("[0] got it"), HasSubstr("[1] got it")));
}

TEST_F(RemoteTest, RanksDieWithTheLauncher) {
  const auto mark = fmt::format("71{:07}", ::getpid() % 10'000'000);
  Program program(run("a,b", shell(), "echo ready; trap '' TERM HUP; sleep " + mark));
  ASSERT_TRUE(program.wait_for("[0] ready") && program.wait_for("[1] ready"));
  program.signal(SIGKILL);
  EXPECT_EQ(program.finish(), 137);
  EXPECT_FALSE(is_running_after(mark, 2));
}

TEST_F(RemoteTest, RanksDieWithTheLauncherBehindAWrapperToo) {
  const auto mark = fmt::format("72{:07}", ::getpid() % 10'000'000);
  Program program(run("a,b", shell(), "(setsid sleep " + mark + " &); echo ready; wait; sleep 60"));
  ASSERT_TRUE(program.wait_for("[0] ready") && program.wait_for("[1] ready"));
  program.signal(SIGKILL);
  EXPECT_EQ(program.finish(), 137);
  EXPECT_FALSE(is_running_after(mark, 5));
}

TEST_F(RemoteTest, RankZeroReadsTheLaunchersInput) {
  // The input is larger than all pipes in between, and the rank reads it late.
  auto words = run("a,b", shell(), "sleep 0.5; wc -c");
  std::string line = "seq 1 100000 |";
  for (const auto& word : words) line += " '" + word + "'";
  const auto quote = line.find("it's");
  line.replace(quote, 4, "its");
  Program program({"/bin/sh", "-c", line});
  EXPECT_EQ(program.finish(), 0);
  EXPECT_THAT(sorted_lines(program.output()), AllOf(Contains("[0] 588895"), Contains("[1] 0")));
}

TEST_F(RemoteTest, NoInputIsReadForARankThatReadsNoMore) {
  // The input is much larger than all pipes in between.
  const auto line = fmt::format(
      "(dd if=/dev/zero bs=65536 count=500 2>/dev/null && echo all of it >&2) | {} --interface "
      "127.0.0.1 --hosts a --rsh {} sh -c 'head -c 1 | wc -c; exec <&-; sleep 1'",
      TUTTI_RUN, shell());
  Program program({"/bin/sh", "-c", line});
  EXPECT_EQ(program.finish(), 0) << program.errors();
  EXPECT_EQ(program.output(), "[0] 1\n");
  EXPECT_THAT(program.errors(), testing::Not(HasSubstr("all of it")));
}

TEST_F(RemoteTest, TheOtherEndWaitsForItsLauncherNoLongerThanItIsAskedTo) {
  const auto silent = folder_ + "/silent";
  ASSERT_EQ(::mkfifo(silent.c_str(), 0600), 0);
  // The input contains no request and does not end.
  const auto begin = fmt::format("exec {} --remote-rank <>'{}'", TUTTI_RUN, silent);
  for (const int number : {SIGTERM, SIGKILL}) {
    Program program({"/bin/sh", "-c", begin});
    ASSERT_TRUE(program.wait_for("remote rank, protocol"));
    program.signal(number);
    EXPECT_EQ(program.finish(5), number == SIGKILL ? 137 : 1) << number;
    EXPECT_LT(program.seconds(), 5) << number;
  }
}

TEST_F(RemoteTest, RanksGetTheirShareOfTheirHostsCores) {
  auto words = run("a:2,b:2", shell(), "echo $OMP_NUM_THREADS; taskset -pc $$");
  words.insert(words.begin(), {"env", "-u", "OMP_NUM_THREADS", "taskset", "-c", "0"});
  words.insert(std::find(words.begin(), words.end(), "/bin/sh"), {"--bind-to", "core"});
  Program program(words);
  EXPECT_EQ(program.finish(), 0);
  for (const char* first : {"[0] ", "[3] "})
    EXPECT_THAT(sorted_lines(program.output()), Contains(first + std::string("1")));
  EXPECT_THAT(program.output(), HasSubstr("affinity list: 0\n"));
  auto told = split_text(program.errors(), '\n');
  std::erase_if(told, [](const auto& line) { return line.find("OMP_NUM") == line.npos; });
  for (const char* rank : {"[0] ", "[2] "})  // the first rank of each host
    EXPECT_THAT(told, Contains(testing::StartsWith(std::string(rank) + "tutti-run: OMP_NUM")));
  EXPECT_EQ(told.size(), 2u) << program.errors();
}

TEST_F(RemoteTest, LosesNoOutput) {
  Program program(run("a,b", shell(), "seq 1 30000"));
  EXPECT_EQ(program.finish(), 0);
  const auto& text = program.output();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 60'000);
}

TEST_F(RemoteTest, SaysWhatDidNotStart) {
  Program missing({TUTTI_RUN, "--interface", "127.0.0.1", "--hosts", "a", "--rsh", shell(),
                   "./no-such-program"});
  EXPECT_EQ(missing.finish(), 127);
  EXPECT_THAT(missing.errors(), HasSubstr("rank 0 (host a) could not be run: cannot start "
                                          "./no-such-program in "));
  Program unreachable(run("a", script("refuse", "echo no route to $1 >&2; exit 255"), "true"));
  EXPECT_EQ(unreachable.finish(), 255);
  EXPECT_THAT(unreachable.errors(),
              AllOf(HasSubstr("[0] no route to a"),
                    HasSubstr("could not be run: the connection to a ended with code 255")));
}

TEST_F(RemoteTest, AShellThatHangsIsEnded) {
  const auto mark = fmt::format("81{:07}", ::getpid() % 10'000'000);
  Program program(run("localhost,b", script("hang", "exec sleep " + mark), "exit 7"));
  EXPECT_EQ(program.finish(), 7);
  EXPECT_LT(program.seconds(), 12);
  EXPECT_FALSE(is_running_after(mark, 2));
}

TEST_F(RemoteTest, RanksOnOtherHostsReachTheStore) {
  if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  const NetworkNamespaces hosts(2);
  // `CMD address command...` runs the command in the namespace that has the address.
  const auto enter = script(
      "enter", fmt::format("case $1 in {}) net={};; {}) net={};; esac\n"
                           "shift; exec nsenter --net=$net \"$@\"",
                           hosts.address(0), hosts.path(0), hosts.address(1), hosts.path(1)));
  // The launcher runs on the first host, so only the second host needs the script.
  Program program({"nsenter", "--net=" + hosts.path(0), TUTTI_RUN, "--hosts",
                   hosts.address(0) + "," + hosts.address(1), "--rsh", enter, "--interface",
                   NetworkNamespaces::kInterface, "/bin/sh", "-c",
                   "echo store $TUTTI_STORE; test $TUTTI_RANK = 0 && { sleep 0.3; exit 3; }; "
                   "exec " TUTTI_STORE_PROBE " deaths/0"});
  EXPECT_EQ(program.finish(), 3);
  EXPECT_THAT(program.output(), HasSubstr("[0] store tcp://" + hosts.address(0) + ":"));
  EXPECT_THAT(program.output(), HasSubstr("[1] rank=0 incarnation=0 pid="));
}

}  // namespace
}  // namespace tutti::test
