// tutti-run as a user sees it, with shell programs.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/tools/run_program.h"
#include "tutti/base/deadline.h"
#include "tutti/base/process/cores.h"
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

// A word for a command line that no other process on this machine has.
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
  refused({"-np", "0"}, "-np 0 is not a number of ranks (must be from 1 to 65536)");
  refused({"--hosts", "localhost:2", "-np", "3"}, "-np 3, but --hosts has room for 2");
  refused({"--hosts", "localhost:x"}, "--hosts: \"localhost:x\" gives no number of ranks");
  refused({"-np", "1", "--env", "TUTTI_NO_SUCH_THING_HERE"}, "there is no such variable here");
  refused({"-np", "2"}, "did you mean TUTTI_FUSION_BYTES?", {"TUTTI_FUSION_BITES=1M"});
  refused({"-np", "2"}, "TUTTI_FUSION_BYTES=64MBB is not a size", {"TUTTI_FUSION_BYTES=64MBB"});
  refused({"-np", "2", "--env", "TUTTI_LOG=loud"}, "TUTTI_LOG=loud is not one of");
}

TEST(TuttiRun, SaysWhatKnocksOnItsPort) {
  Program program({TUTTI_RUN, "-np", "1", "--", "bash", "-c",
                   "for i in 1 2 3; do exec 3<>/dev/tcp/127.0.0.1/${TUTTI_STORE##*:}; "
                   "echo 'GET / HTTP/1.1' >&3; cat <&3; done"});
  EXPECT_EQ(program.finish(), 0);
  EXPECT_THAT(program.errors(), AllOf(HasSubstr("tutti-run: the store at 127.0.0.1:"),
                                      HasSubstr("turned a connection away: the connection from"),
                                      HasSubstr("is not a Tutti process")));
}

// A folder with one file, removed at the end.
class Folder {
 public:
  Folder(const std::string& file, const std::string& text, int mode)
      : path_(testing::TempDir() + fmt::format("tutti_run_{}_{}", file, ::getpid())) {
    std::filesystem::create_directories(path_);
    std::ofstream(path_ + "/" + file) << text;
    ::chmod((path_ + "/" + file).c_str(), static_cast<mode_t>(mode));
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

TEST(TuttiRun, NamesAProgramThatDoesNotStartAndEndsAsAShellWould) {
  const auto refused = [](const std::string& folder, const std::string& name, int code,
                          const std::string& why) {
    Program program({"env", "-C", folder, TUTTI_RUN, "-np", "2", name});
    EXPECT_EQ(program.finish(), code) << name;
    EXPECT_EQ(program.errors(), fmt::format("tutti-run: cannot start {}: {}\n", name, why));
  };
  refused("/", "./no-such-program", 127, "No such file or directory");
  refused("/", "no-such-program", 127, "No such file or directory");
  const Folder good("trainer", "#!/bin/sh\n", 0700);
  refused(good.path(), "trainer", 127,
          "No such file or directory; it is not in PATH, but in this folder: write ./trainer");
  const Folder odd("odd", "#!/no/such/shell\n", 0700);
  refused(odd.path(), "./odd", 127,
          "No such file or directory; it is there, but what it needs to run (its interpreter or "
          "loader) is not");
  const Folder data("data", "1 2 3\n", 0600);
  refused(data.path(), "./data", 126, "Permission denied");
  refused(data.path(), "data", 127, "No such file or directory");
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
  EXPECT_THAT(lines, testing::Contains("[1] 1"));  // only TUTTI_SECRET_FD
  std::string secret;
  for (const auto& line : lines)
    if (line.size() == 68) secret = line.substr(4);
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [&](const auto& line) { return line.find(secret) != line.npos; }),
            2);
}

TEST(TuttiRun, EndsWithTheCodeOfTheFirstFailure) {
  Program program(
      run({"-np", "3"},
          "case $TUTTI_RANK in 1) echo going; echo down >&2; exit 5;; 2) " TUTTI_STORE_PROBE
          " deaths/0 >/dev/null; exit 6;; *) " TUTTI_STORE_PROBE " deaths/0 >/dev/null;; esac"));
  EXPECT_EQ(program.finish(), 5);
  EXPECT_THAT(program.errors(),
              HasSubstr(") ended with code 5, the first of 2. Its last lines:\n  "));
  EXPECT_THAT(program.errors(), AllOf(HasSubstr("\n  going\n"), HasSubstr("\n  down\n"),
                                      HasSubstr("tutti-run: rank 1 (host ")));
}

TEST(TuttiRun, NamesTheSignalThatKilledARank) {
  Program program(run({"-np", "2"}, "test $TUTTI_RANK = 0 && kill -9 $$; exec " TUTTI_STORE_PROBE
                                    " deaths/0 >/dev/null"));
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
                   "test $TUTTI_RANK = 0 && exec " TUTTI_STORE_PROBE " deaths/0; echo pid $$; kill "
                   "-11 $$"});
  EXPECT_EQ(program.finish(), 139);
  std::string record, pid;
  for (const auto& line : sorted_lines(program.output())) {
    if (line.starts_with("[0] ")) record = line.substr(4);
    if (line.starts_with("[1] pid ")) pid = line.substr(8);
  }
  const auto death = decode_death(record);
  ASSERT_TRUE(death) << program.output() << program.errors();
  EXPECT_EQ(death->who.rank, 1);
  EXPECT_EQ(death->signal, 11);
  EXPECT_EQ(std::to_string(death->pid), pid);
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  EXPECT_EQ(death->host, name);
}

TEST(TuttiRun, GivesTheOthersTimeToReport) {
  // Rank 1 ends by itself in time, rank 2 on SIGTERM, rank 3 only on SIGKILL.
  Program program(run({"-np", "4"},
                      "case $TUTTI_RANK in 0) exit 9;; 1) sleep 1; echo reported;; 2) trap 'echo "
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

TEST(TuttiRun, SaysWhichRanksHadEndedBeforeTheFirstFailure) {
  Program program(run({"-np", "4"}, "case $TUTTI_RANK in 1|2) exit 0;; 3) exec " TUTTI_STORE_PROBE
                                    " deaths/2 >/dev/null;; 0) " TUTTI_STORE_PROBE
                                    " deaths/1 >/dev/null; exit 4;; esac"));
  EXPECT_EQ(program.finish(), 4);
  EXPECT_THAT(program.errors(),
              HasSubstr(") ended with code 4, after ranks 1 2 had ended with code 0"));
}

TEST(TuttiRun, AnInterruptThatIsIgnoredIsFollowedByWorse) {
  // Rank 0 obeys, rank 1 ends on SIGTERM, rank 2 only on SIGKILL.
  Program program(run({"-np", "3", "--grace", "1"},
                      "case $TUTTI_RANK in 1) trap '' INT; trap 'echo told; exit 0' TERM;; 2) trap "
                      "'' INT TERM;; esac; echo ready; while :; do sleep 0.1; done"));
  for (const char* ready : {"[0] ready", "[1] ready", "[2] ready"})
    ASSERT_TRUE(program.wait_for(ready));
  program.signal(SIGINT);
  EXPECT_EQ(program.finish(), 130);
  EXPECT_GE(program.seconds(), 5.9);
  EXPECT_LT(program.seconds(), 12);
  EXPECT_THAT(program.output(), HasSubstr("[1] told"));
  EXPECT_THAT(
      program.errors(),
      AllOf(HasSubstr("tutti-run: SIGINT passed on to ranks 0-2; those that run after 1 s get "
                      "SIGTERM, after 6 s SIGKILL; a second signal kills them "
                      "immediately\n"),
            HasSubstr("tutti-run: ranks 1 2 still there: SIGTERM\n"),
            HasSubstr("tutti-run: rank 2 still there: SIGKILL\n")));
}

TEST(TuttiRun, CanBeInterruptedWhileNobodyReadsItsOutput) {
  // Nobody reads the output, so the pipe is soon full.
  Program program(run({"-np", "2"}, fmt::format("while :; do seq {0}00 {0}99; done", mark(7))));
  ::usleep(500'000);
  program.signal(SIGINT);
  EXPECT_FALSE(is_running_after(mark(7), 5));
  EXPECT_EQ(program.finish(), 130);
}

TEST(TuttiRun, ASecondInterruptEndsAtOnce) {
  Program program(run({"-np", "2"}, "trap '' INT; echo ready; while :; do sleep 0.1; done"));
  ASSERT_TRUE(program.wait_for("[0] ready") && program.wait_for("[1] ready"));
  program.signal(SIGINT);
  ASSERT_TRUE(program.wait_for("SIGINT passed on"));
  program.signal(SIGINT);
  EXPECT_EQ(program.finish(), 130);
  EXPECT_LT(program.seconds(), 3);
}

TEST(TuttiRun, LeavesNoProcess) {
  // A program in the background keeps the pipes open too.
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

TEST(TuttiRun, RanksDieWithItBehindAWrapperToo) {
  // The processes are in process groups and sessions of their own, some without a parent.
  Program program(
      run({"-np", "2"}, fmt::format("sh -c 'setsid sleep {} & sleep {}; true' & (setsid "
                                    "sleep {} &); echo ready; wait",
                                    mark(3), mark(4), mark(5))));
  ASSERT_TRUE(program.wait_for("[0] ready") && program.wait_for("[1] ready"));
  ::usleep(200'000);
  for (const int number : {3, 4, 5}) EXPECT_TRUE(is_running(mark(number))) << number;
  program.signal(SIGKILL);
  EXPECT_EQ(program.finish(), 137);
  for (const int number : {3, 4, 5}) EXPECT_FALSE(is_running_after(mark(number), 5)) << number;
}

TEST(TuttiRun, RanksDieWithItsKeeperToo) {
  Program program(run({"-np", "2"}, fmt::format("echo $PPID; sh -c 'sleep {}; true'", mark(6))));
  ASSERT_TRUE(program.wait_for("[0] ") && program.wait_for("[1] "));
  const auto keeper = parse_integer(split_text(program.output(), '\n')[0].substr(4), 2, 1 << 30);
  ASSERT_TRUE(keeper) << program.output();
  ASSERT_NE(*keeper, program.pid());
  ::kill(static_cast<pid_t>(*keeper), SIGKILL);
  EXPECT_EQ(program.finish(), 137);
  EXPECT_THAT(program.errors(),
              HasSubstr("was killed by signal 9 (Killed), and so were all ranks"));
  EXPECT_FALSE(is_running(mark(6)));
}

TEST(TuttiRun, RankZeroReadsItsInput) {
  const std::string script = "cat | wc -c";
  Program program({"/bin/sh", "-c", "seq 1 100000 | '" TUTTI_RUN "' -np 2 sh -c '" + script + "'"});
  EXPECT_EQ(program.finish(), 0);
  EXPECT_THAT(sorted_lines(program.output()), ElementsAre("[0] 588895", "[1] 0"));
}

// Covers a launcher whose own streams are closed: otherwise ranks would read the secret as their
// input.
TEST(TuttiRun, StandardStreamsThatAreClosedAreEmpty) {
  const std::string script = "wc -c; cat /proc/self/fd/$TUTTI_SECRET_FD | wc -c";
  const std::string start = "'" TUTTI_RUN "' -np 1 sh -c '" + script + "'";
  Program no_input({"/bin/sh", "-c", "exec " + start + " <&-"});
  EXPECT_EQ(no_input.finish(), 0) << no_input.errors();
  EXPECT_EQ(no_input.output(), "[0] 0\n[0] 64\n");
  Program none({"/bin/sh", "-c", start + " <&- >&- 2>&-; echo code $?"});
  EXPECT_EQ(none.finish(), 0);
  EXPECT_EQ(none.output(), "code 0\n");
}

TEST(TuttiRun, GivesOpenMpItsShareAndSaysSoOnce) {
  const std::string script = "echo $OMP_NUM_THREADS";
  const auto with = [&](std::vector<std::string> before, const std::vector<std::string>& options) {
    const auto words = run(options, script);
    before.insert(before.end(), words.begin(), words.end());
    return before;
  };
  Program unset(with({"env", "-u", "OMP_NUM_THREADS", "taskset", "-c", "0"}, {"-np", "3"}));
  EXPECT_EQ(unset.finish(), 0);
  EXPECT_THAT(sorted_lines(unset.output()), ElementsAre("[0] 1", "[1] 1", "[2] 1"));
  EXPECT_EQ(unset.errors(),
            "tutti-run: OMP_NUM_THREADS=1 for each of the 3 ranks on this host, its share of the "
            "cores; set the variable to choose another number\n");
  // One rank has all cores, and OpenMP finds them by itself.
  Program alone(with({"env", "-u", "OMP_NUM_THREADS"}, {"-np", "1"}));
  EXPECT_EQ(alone.finish(), 0);
  EXPECT_EQ(alone.output(), "[0] \n");
  EXPECT_EQ(alone.errors(), "");
  for (const auto& options : {std::vector<std::string>{"-np", "2"},
                              std::vector<std::string>{"-np", "2", "--env", "OMP_NUM_THREADS=7"}}) {
    Program given(with({"env", "OMP_NUM_THREADS=7"}, options));
    EXPECT_EQ(given.finish(), 0);
    EXPECT_THAT(sorted_lines(given.output()), ElementsAre("[0] 7", "[1] 7"));
    EXPECT_EQ(given.errors(), "");
  }
}

TEST(TuttiRun, BindsRanksToCores) {
  Program program(run({"-np", "2", "--bind-to", "core"}, "taskset -pc $$ | sed 's/.*: //'"));
  EXPECT_EQ(program.finish(), 0);
  const auto lines = sorted_lines(program.output());
  ASSERT_EQ(lines.size(), 2u);
  const auto cores = usable_cores();
  if (cores.size() >= 2) {
    EXPECT_NE(lines[0].substr(4), lines[1].substr(4));
  }
  EXPECT_THAT(lines[0], testing::StartsWith(fmt::format("[0] {}", cores.front())));
}

TEST(TuttiRun, MoreRanksThanCoresTakeThemInTurn) {
  const auto cores = usable_cores();
  std::vector<std::string> words = {"taskset", "-c",
                                    fmt::format("{},{}", cores.front(), cores.back())};
  for (const auto& word : run({"-np", "3", "--bind-to", "core"}, "taskset -pc $$ | sed 's/.*: //'"))
    words.push_back(word);
  Program program(words);
  EXPECT_EQ(program.finish(), 0);
  EXPECT_THAT(sorted_lines(program.output()),
              ElementsAre(fmt::format("[0] {}", cores.front()), fmt::format("[1] {}", cores.back()),
                          fmt::format("[2] {}", cores.front())));
}

TEST(TuttiRun, WritesIntoFilesOrWithoutNumbers) {
  const Folder folder("empty", "", 0600);
  const std::string script = "echo out $TUTTI_RANK; echo err $TUTTI_RANK >&2";
  Program bare(run({"-np", "2", "--no-prefix"}, script));
  EXPECT_EQ(bare.finish(), 0);
  EXPECT_THAT(sorted_lines(bare.output()), ElementsAre("out 0", "out 1"));
  const auto place = folder.path() + "/a/b";
  Program files(run({"-np", "2", "--output", place}, script));
  EXPECT_EQ(files.finish(), 0);
  EXPECT_EQ(files.output() + files.errors(), "");
  for (const char* name : {"0.out", "1.out", "0.err", "1.err"}) {
    std::ifstream file(place + "/" + name);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    EXPECT_EQ(text, fmt::format("{} {}\n", std::string(name).substr(2), name[0]));
  }
}

TEST(TuttiRun, OutputThatIsLostIsToldAndNoSuccess) {
  const auto told = [](const std::string& place) {
    return "tutti-run: cannot write to " + place +
           ": No space left on device; what the ranks write there is lost\n";
  };
  Program full({"/bin/sh", "-c", "'" TUTTI_RUN "' -np 2 echo here >/dev/full"});
  EXPECT_EQ(full.finish(), 1);
  EXPECT_EQ(full.errors(), told("standard output"));

  const Folder folder("empty", "", 0600);
  const auto place = folder.path() + "/0.out";
  std::filesystem::create_symlink("/dev/full", place);
  Program file(run({"-np", "2", "--output", folder.path()}, "echo $TUTTI_RANK"));
  EXPECT_EQ(file.finish(), 1);
  EXPECT_EQ(file.errors(), told(place));
  std::ifstream other(folder.path() + "/1.out");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(other), {}), "1\n");
}

TEST(TuttiRun, ManyRanksArePrintedAsTheyStart) {
  Program program(
      {"sh", "-c", "ulimit -Sn 256; exec '" TUTTI_RUN "' -np 300 sh -c 'echo here; ulimit -Sn'"});
  ASSERT_TRUE(program.wait_for("[0] here"));
  EXPECT_EQ(program.finish(60), 0);
  EXPECT_EQ(program.errors().find("Too many open files"), std::string::npos);
  EXPECT_EQ(std::count(program.output().begin(), program.output().end(), '\n'), 600);
  // The same limit as without the launcher.
  EXPECT_THAT(program.output(), HasSubstr("[299] 256\n"));
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
  Program program({"/bin/sh", "-c",
                   "'" TUTTI_RUN "' -np 2 sh -c 'seq 1 50000; echo done >&2; exit 4' | head -1"});
  EXPECT_EQ(program.finish(), 0);  // the exit code of head
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
