#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/run/command_line.h"
#include "tutti/core/settings/version.h"

namespace tutti::run {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(CommandLine, NpInEverySpelling) {
  for (const auto& words : std::vector<std::vector<std::string>>{{"-np", "4", "a"},
                                                                 {"-np4", "a"},
                                                                 {"-np=4", "a"},
                                                                 {"-n4", "a"},
                                                                 {"-n", "4", "a"},
                                                                 {"--np", "4", "a"},
                                                                 {"--np=4", "a"}}) {
    const auto request = parse_command_line(words);
    EXPECT_EQ(request.ranks, 4);
    EXPECT_THAT(request.program, ElementsAre("a"));
  }
}

TEST(CommandLine, WhatFollowsTheProgramIsItsOwn) {
  const auto request = parse_command_line(
      {"-np", "2", "--env", "A=b", "--env", "C", "./train", "-np", "9", "--hosts", "x", "--"});
  EXPECT_EQ(request.ranks, 2);
  EXPECT_THAT(request.variables, ElementsAre("A=b", "C"));
  EXPECT_THAT(request.program, ElementsAre("./train", "-np", "9", "--hosts", "x", "--"));
  EXPECT_THAT(parse_command_line({"-np", "2", "--", "-odd", "x"}).program,
              ElementsAre("-odd", "x"));
}

TEST(CommandLine, HostsAndTheRest) {
  const auto request =
      parse_command_line({"--hosts", "a:2,b", "--rsh", "my shell  -x", "--timeline", "run.json",
                          "--interface", "eth1", "--keep-going", "p"});
  EXPECT_EQ(request.ranks, 0);
  EXPECT_TRUE(request.hosts_given);
  EXPECT_EQ(request.hosts, "a:2,b");
  EXPECT_THAT(request.remote_shell, ElementsAre("my", "shell", "-x"));
  EXPECT_EQ(request.timeline, "run.json");
  EXPECT_EQ(request.network_interface, "eth1");
  EXPECT_TRUE(request.keep_going);
  EXPECT_TRUE(parse_command_line({"--options"}).print_options);
}

TEST(CommandLine, ErrorsAreOneLineAndCodeTwo) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{}, "how many ranks? Give -np N"},
      {{"p", "-np", "2"}, "how many ranks? Give -np before the program"},
      {{"-np", "0", "p"}, "-np 0 is not a number of ranks (must be from 1 to 65536)"},
      {{"-np", "-1", "p"}, "-np -1 is not a number"},
      {{"-np", "two", "p"}, "-np two is not a number"},
      {{"-np", "2x", "p"}, "-np 2x is not a number"},
      {{"-np2x", "p"}, "-np 2x is not a number"},
      {{"-np", "2", "--grace", "soon", "p"}, "--grace soon is not a time"},
      {{"-np", "2", "--bind-to", "socket", "p"},
       "--bind-to socket is not known (must be core or none)"},
      {{"-np", "99999999999", "p"}, "-np 99999999999 is not a number"},
      {{"-np"}, "--np"},
      {{"-np", "2"}, "which program?"},
      {{"--bogus", "-np", "2", "p"}, "--bogus"},
      {{"-np", "2", "--env", "=x", "p"}, "--env =x does not name a variable"},
      {{"-np", "2", "--rsh", " ", "p"}, "--rsh is empty; give it a command"}};
  for (const auto& [words, text] : cases) {
    try {
      parse_command_line(words);
      ADD_FAILURE() << text;
    } catch (const Refusal& refusal) {
      EXPECT_EQ(refusal.code, 2);
      EXPECT_THAT(refusal.text, HasSubstr(text));
      EXPECT_EQ(refusal.text.find('\n'), refusal.text.size() - 1) << refusal.text;
    }
  }
}

TEST(CommandLine, VersionIsNoError) {
  try {
    parse_command_line({"--version"});
    FAIL();
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.code, 0);
    EXPECT_EQ(refusal.text, fmt::format("tutti-run {}\n", kVersion));
  }
}

TEST(CommandLine, HelpIsNoError) {
  try {
    parse_command_line({"--help"});
    FAIL();
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.code, 0);
    for (const char* word : {"--hosts", "--rsh", "--timeline", "--env", "--options"})
      EXPECT_THAT(refusal.text, HasSubstr(word));
    EXPECT_THAT(refusal.text, testing::Not(HasSubstr("--remote-rank")));
  }
}

}  // namespace
}  // namespace tutti::run
