// tutti-run as a user sees it, with programs of the shell.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "tests/tools/run_program.h"
#include "tutti/base/text.h"
#include "tutti/core/watch/death.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

std::vector<std::string> run(const std::vector<std::string>& options, const std::string& script) {
  std::vector<std::string> words = {TUTTI_RUN};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"/bin/sh", "-c", script});
  return words;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  auto lines = split_text(text, '\n');
  lines.pop_back();
  std::sort(lines.begin(), lines.end());
  return lines;
}

// A word on a command line that nothing else on this machine has.
std::string mark(int number) { return fmt::format("6{}{:07}", number, ::getpid() % 10'000'000); }

TEST(TuttiRun, TellsEachRankItsPlace) {
  Program program(run({"-np", "3"},
                      "echo $TUTTI_RANK/$TUTTI_SIZE $TUTTI_LOCAL_RANK/$TUTTI_LOCAL_SIZE; echo "
                      "\"${TUTTI_STORE%:*}\" >&2"));
  EXPECT_EQ(program.finish(), 0);
  EXPECT_THAT(sorted_lines(program.output()),
              ElementsAre("[0] 0/3 0/3", "[1] 1/3 1/3", "[2] 2/3 2/3"));
  EXPECT_THAT(sorted_lines(program.errors()),
              ElementsAre("[0] tcp://127.0.0.1", "[1] tcp://127.0.0.1", "[2] tcp://127.0.0.1"));
}

TEST(TuttiRun, UsageErrorsAreOneLineAndCodeTwo) {
  const auto refused = [](const std::vector<std::string>& options, const char* text,
                          const std::vector<std::string>& variables = {}) {
    Program program(run(options, "echo started"), variables);
    EXPECT_EQ(program.finish(), 2) << text;
    EXPECT_EQ(program.output(), "") << text;
    EXPECT_THAT(program.errors(), AllOf(HasSubstr("tutti-run: "), HasSubstr(text)));
    EXPECT_EQ(program.errors().find('\n'), program.errors().size() - 1) << program.errors();
  };
  refused({"-np", "0"}, "-np 0 is not a number of ranks (want 1 to 65536)");
  refused({"--hosts", "localhost:2", "-np", "3"}, "-np 3, but --hosts has room for 2");
  refused({"--hosts", "localhost:x"}, "--hosts: \"localhost:x\" gives no number of ranks");
  refused({"-np", "1", "--env", "TUTTI_NO_SUCH_THING_HERE"}, "there is no such variable here");
  refused({"-np", "2"}, "did you mean TUTTI_FUSION_BYTES?", {"TUTTI_FUSION_BITES=1M"});
  refused({"-np", "2"}, "TUTTI_FUSION_BYTES=64MBB is not a size", {"TUTTI_FUSION_BYTES=64MBB"});
  refused({"-np", "2", "--env", "TUTTI_LOG=loud"}, "TUTTI_LOG=loud is not one of");
}

TEST(TuttiRun, NamesAProgramThatIsNotThere) {
  Program program({TUTTI_RUN, "-np", "2", "./no-such-program"});
  EXPECT_EQ(program.finish(), 1);
  EXPECT_EQ(program.errors(),
            "tutti-run: cannot start ./no-such-program: No such file or directory\n");
}

TEST(TuttiRun, PassesSettingsAndVariablesOn) {
  Program program(run({"-np", "1", "--env", "A=b c", "--env", "B", "--timeline", "t.json"},
                      "echo $A,$B,$TUTTI_TIMELINE,$TUTTI_LOG,$TUTTI_RANK,$TUTTI_SECRET"),
                  {"B=d", "TUTTI_LOG=info", "TUTTI_RANK=7", "TUTTI_SECRET=outer"});
  EXPECT_EQ(program.finish(), 0);
  EXPECT_EQ(program.output(), "[0] b c,d,t.json,info,0,\n");
}

TEST(TuttiRun, HandsTheSecretOverByADescriptorOnly) {
  Program program(run({"-np", "2"},
                      "cat /proc/self/fd/$TUTTI_SECRET_FD; echo; env | grep -c SECRET; tr '\\0' "
                      "'\\n' < /proc/$PPID/cmdline | tail -1"));
  EXPECT_EQ(program.finish(), 0);
  const auto lines = sorted_lines(program.output());
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_THAT(lines, testing::Contains(MatchesRegex("\\[0\\] [0-9a-f]{64}")));
  EXPECT_THAT(lines, testing::Contains("[1] 1"));  // TUTTI_SECRET_FD alone
  std::string secret;
  for (const auto& line : lines)
    if (line.size() == 68) secret = line.substr(4);
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [&](const auto& line) { return line.find(secret) != line.npos; }),
            2);
}

TEST(TuttiRun, EndsWithTheCodeOfTheFirstFailure) {
  Program program(run({"-np", "3"},
                      "case $TUTTI_RANK in 1) echo going; echo down >&2; exit 5;; 2) sleep 0.3; "
                      "exit 6;; *) sleep 0.5;; esac"));
  EXPECT_EQ(program.finish(), 5);
  EXPECT_THAT(program.errors(),
              HasSubstr(") ended with code 5, the first of 2. Its last lines:\n  "));
  EXPECT_THAT(program.errors(), AllOf(HasSubstr("\n  going\n"), HasSubstr("\n  down\n"),
                                      HasSubstr("tutti-run: rank 1 (host ")));
}

TEST(TuttiRun, NamesTheSignalThatKilledARank) {
  Program program(run({"-np", "2"}, "test $TUTTI_RANK = 1 || kill -9 $$"));
  EXPECT_EQ(program.finish(), 137);
  EXPECT_THAT(program.errors(),
              MatchesRegex("tutti-run: rank 0 \\(host [^,]*, pid [0-9]+\\) was killed by signal 9 "
                           "\\(Killed\\)\\. It wrote nothing\\.\n"));
}

TEST(TuttiRun, AnEarlyEndIsNoFailure) {
  Program program(run({"-np", "2"}, "test $TUTTI_RANK = 0 || { sleep 0.3; echo still here; }"));
  EXPECT_EQ(program.finish(), 0);
  EXPECT_EQ(program.output(), "[1] still here\n");
  EXPECT_EQ(program.errors(), "");
}

TEST(TuttiRun, WritesDeathsIntoTheStore) {
  Program program({TUTTI_RUN, "-np", "2", "/bin/sh", "-c",
                   "test $TUTTI_RANK = 0 && exec " TUTTI_STORE_PROBE " death/1; echo pid $$; kill "
                   "-11 $$"});
  EXPECT_EQ(program.finish(), 139);
  std::string record, pid;
  for (const auto& line : sorted_lines(program.output())) {
    if (line.starts_with("[0] ")) record = line.substr(4);
    if (line.starts_with("[1] pid ")) pid = line.substr(8);
  }
  const auto death = decode_death(record);
  ASSERT_TRUE(death) << program.output() << program.errors();
  EXPECT_EQ(death->rank, 1);
  EXPECT_EQ(death->signal, 11);
  EXPECT_EQ(std::to_string(death->pid), pid);
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  EXPECT_EQ(death->host, name);
}

TEST(TuttiRun, GivesTheOthersTimeToReport) {
  // Rank 1 ends in time by itself, rank 2 on SIGTERM, rank 3 on nothing but SIGKILL.
  Program program(run({"-np", "4"},
                      "case $TUTTI_RANK in 0) exit 9;; 1) sleep 2; echo reported;; 2) trap 'echo "
                      "told to end; exit 0' TERM; while :; do sleep 0.1; done;; 3) trap '' TERM; "
                      "while :; do sleep 0.1; done;; esac"));
  EXPECT_EQ(program.finish(), 9);
  EXPECT_THAT(sorted_lines(program.output()), ElementsAre("[1] reported", "[2] told to end"));
  EXPECT_GE(program.seconds(), 4.9);
  EXPECT_LT(program.seconds(), 10);
}

TEST(TuttiRun, CanKeepGoing) {
  Program program(run({"-np", "2", "--keep-going"},
                      "test $TUTTI_RANK = 0 && kill -9 $$; sleep 3.5; echo survived"));
  EXPECT_EQ(program.finish(), 0);
  EXPECT_EQ(program.output(), "[1] survived\n");
  EXPECT_THAT(program.errors(), HasSubstr("rank 0"));
}

TEST(TuttiRun, ForwardsSignals) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    const bool ends = number != SIGUSR1 && number != SIGUSR2;
    Program program(run({"-np", "2"}, fmt::format("trap 'echo got it; exit {}' {}; echo ready; "
                                                  "while :; do sleep 0.02; done",
                                                  ends ? 3 : 0, number)));
    ASSERT_TRUE(program.wait_for("[0] ready") && program.wait_for("[1] ready"));
    program.signal(number);
    EXPECT_EQ(program.finish(), ends ? 128 + number : 0) << number;
    EXPECT_THAT(program.output(), AllOf(HasSubstr("[0] got it"), HasSubstr("[1] got it")));
    if (ends) {
      EXPECT_THAT(program.errors(), HasSubstr(fmt::format("ended by signal {}; ", number)));
    }
  }
}

TEST(TuttiRun, ASecondInterruptEndsAtOnce) {
  Program program(run({"-np", "2"}, "trap '' INT; echo ready; while :; do sleep 0.1; done"));
  ASSERT_TRUE(program.wait_for("[0] ready") && program.wait_for("[1] ready"));
  program.signal(SIGINT);
  ::usleep(200'000);
  program.signal(SIGINT);
  EXPECT_EQ(program.finish(), 130);
  EXPECT_LT(program.seconds(), 3);
}

TEST(TuttiRun, LeavesNoProcess) {
  // A program left in the background holds the pipes open as well.
  Program program(run({"-np", "2"}, fmt::format("sleep {} & echo started", mark(1))));
  EXPECT_EQ(program.finish(), 0);
  EXPECT_LT(program.seconds(), 10);
  EXPECT_FALSE(is_running_after(mark(1), 2));
}

TEST(TuttiRun, RanksDieWithIt) {
  Program program(run({"-np", "2"}, fmt::format("echo ready; exec sleep {}", mark(2))));
  ASSERT_TRUE(program.wait_for("[0] ready") && program.wait_for("[1] ready"));
  EXPECT_TRUE(is_running(mark(2)));
  program.signal(SIGKILL);
  EXPECT_EQ(program.finish(), 137);
  EXPECT_FALSE(is_running_after(mark(2), 2));
}

TEST(TuttiRun, LosesNoOutput) {
  Program program(run({"-np", "2"}, "seq 1 30000; seq 1 30000 >&2"));
  EXPECT_EQ(program.finish(), 0);
  for (const auto* text : {&program.output(), &program.errors()}) {
    EXPECT_EQ(std::count(text->begin(), text->end(), '\n'), 60'000);
    EXPECT_THAT(*text, AllOf(HasSubstr("[0] 30000\n"), HasSubstr("[1] 30000\n")));
  }
}

TEST(TuttiRun, AReaderThatLeavesIsNoReasonToEnd) {
  Program program(
      {"/bin/sh", "-c", TUTTI_RUN " -np 2 sh -c 'seq 1 50000; echo done >&2; exit 4' | head -1"});
  EXPECT_EQ(program.finish(), 0);  // head's
  EXPECT_THAT(program.errors(), AllOf(HasSubstr("[0] done"), HasSubstr("[1] done")));
}

TEST(TuttiRun, PrintsTheSettings) {
  Program program({TUTTI_RUN, "--options"}, {"TUTTI_FUSION_BYTES=8M", "TUTTI_SECRET=hush"});
  EXPECT_EQ(program.finish(), 0);
  EXPECT_THAT(program.output(), AllOf(HasSubstr("TUTTI_FUSION_BYTES"), HasSubstr("(default 4M)"),
                                      Not(HasSubstr("hush"))));
}

}  // namespace
}  // namespace tutti::test
