#include "tools/bench/command_line.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/bench/cases/cases.h"
#include "tools/bench/workload/sizes.h"
#include "tutti/base/error.h"
#include "tutti/core/settings/version.h"

namespace tutti::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Sizes, RangesListsAndSingleOnes) {
  EXPECT_THAT(parse_sizes("4..256", 4), ElementsAre(4, 16, 64, 256));
  EXPECT_THAT(parse_sizes("4..255", 4), ElementsAre(4, 16, 64));
  EXPECT_THAT(parse_sizes("1K..4K", 2), ElementsAre(1024, 2048, 4096));
  EXPECT_THAT(parse_sizes("4,64K,1M", 4), ElementsAre(4, 65'536, 1'048'576));
  EXPECT_THAT(parse_sizes("7", 4), ElementsAre(7));
  EXPECT_EQ(parse_sizes("4..256M", 4).size(), 14u);
  for (const char* text : {"4..", "..4", "4...8", "4..8..16", "x", "", "4,,8", "0", "-4", "8..4",
                           "4 ..8", "65G", "4..999999999999999999999G"})
    EXPECT_THROW(parse_sizes(text, 4), Error) << text;
}

TEST(Sizes, AreWrittenShort) {
  EXPECT_EQ(short_size(1), "1");
  EXPECT_EQ(short_size(1000), "1000");
  EXPECT_EQ(short_size(4096), "4K");
  EXPECT_EQ(short_size(256 << 20), "256M");
  EXPECT_EQ(short_size((1 << 20) + 1024), "1025K");
}

TEST(BenchCommandLine, TakesAllOptionsOfACollective) {
  const auto settings = parse_command_line({"allreduce",
                                            "--bytes",
                                            "4..16",
                                            "--factor",
                                            "2",
                                            "--dtype",
                                            "bf16",
                                            "--op",
                                            "average",
                                            "--way",
                                            "named",
                                            "--place",
                                            "out",
                                            "--ranks",
                                            "3",
                                            "--backend",
                                            "tcp",
                                            "--pin",
                                            "--json",
                                            "j",
                                            "--csv",
                                            "-",
                                            "--plot",
                                            "p.svg",
                                            "--warmup",
                                            "0",
                                            "--repetitions",
                                            "3",
                                            "--iterations",
                                            "7",
                                            "--repetition-ms",
                                            "2.5"});
  EXPECT_EQ(settings.case_name, "allreduce");
  EXPECT_THAT(settings.bytes, ElementsAre(4, 8, 16));
  EXPECT_EQ(settings.dtype, DataType::bf16);
  EXPECT_EQ(settings.op, ReduceOp::average);
  EXPECT_EQ(settings.way, Way::named);
  EXPECT_EQ(settings.placement, Placement::out_of_place);
  EXPECT_EQ(settings.ranks, 3);
  EXPECT_EQ(settings.backend, "tcp");
  EXPECT_TRUE(settings.pin);
  EXPECT_EQ(settings.json, "j");
  EXPECT_EQ(settings.csv, "-");
  EXPECT_EQ(settings.plot, "p.svg");
  EXPECT_EQ(settings.warmup, 0);
  EXPECT_EQ(settings.repetitions, 3);
  EXPECT_EQ(settings.iterations, 7);
  EXPECT_EQ(settings.repetition_ms, 2.5);
}

TEST(BenchCommandLine, TakesTheOptionsOfTheOtherCases) {
  const auto overlap = parse_command_line(
      {"overlap", "--set", "gpt2", "--elements", "64", "--backward-ms", "12", "--way", "arena"});
  EXPECT_EQ(overlap.set, "gpt2");
  EXPECT_EQ(overlap.elements, 64);
  EXPECT_EQ(overlap.backward_ms, 12);
  EXPECT_EQ(overlap.way, Way::arena);
  EXPECT_EQ(parse_command_line({"steady", "--steps", "10000"}).steps, 10'000);
  const auto latency = parse_command_line({"latency", "--calls", "9", "--polled"});
  EXPECT_EQ(latency.calls, 9);
  EXPECT_TRUE(latency.polled);
  EXPECT_EQ(parse_command_line({"broadcast", "--root", "1"}).root, 1);
  EXPECT_EQ(parse_command_line({"create", "--repetitions", "2"}).repetitions, 2);
}

TEST(BenchCommandLine, BadInputIsOneLineAndCodeTwo) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{}, "which case?"},
      {{"allredcue"}, "there is no case \"allredcue\"; did you mean \"allreduce\"?"},
      {{"--bytes", "4"}, "there is no case \"--bytes\""},
      {{"allreduce", "--bytes", "4.."},
       "--bytes 4..: a size is missing (expected FROM..TO, a list like 4,64K,1M, or one size"},
      {{"allreduce", "--bytes", "4..x"}, "\"x\" is not a size"},
      {{"allreduce", "--bytes", "8..4"}, "the range ends before it begins"},
      {{"allreduce", "--bytes"}, "--bytes"},
      {{"allreduce", "--factor", "1"}, "--factor 1: not a whole number from 2"},
      {{"allreduce", "--dtype", "f31"}, "--dtype f31: expected one of f64, f32"},
      {{"allreduce", "--op", "mean"}, "--op mean: expected one of sum, average"},
      {{"allreduce", "--op", "band"}, "--op band cannot be applied to f32"},
      {{"reduce_scatter", "--op", "average", "--dtype", "bool"}, "cannot be applied to bool"},
      {{"allreduce", "--backend", "smh"}, "did you mean \"shm\"?"},
      {{"allreduce", "--way", "direct"}, "--way direct: expected one of blocking, vector, named"},
      {{"gradients", "--way", "blocking"}, "--way blocking: expected one of named, declared"},
      {{"allreduce", "--place", "up"}, "--place up: expected in, out or both"},
      {{"allreduce", "--ranks", "0"}, "--ranks 0: not a whole number from 1"},
      {{"reduce", "--ranks", "2", "--root", "2"}, "--root 2: there are ranks 0 to 1"},
      {{"gradients", "--set", "vgg"}, "--set vgg: neither a built-in set (resnet50, gpt2"},
      {{"overlap", "--backward-ms", "0"}, "--backward-ms 0: not a number of milliseconds"},
      {{"barrier", "--bytes", "4"}, "--bytes is not an option of barrier"},
      {{"allreduce", "stray"}, "stray is not an option of allreduce"},
      {{"latency", "--repetitions", "3"}, "--repetitions is not an option of latency"}};
  for (const auto& [words, text] : cases) {
    try {
      parse_command_line(words);
      ADD_FAILURE() << "taken, but should say: " << text;
    } catch (const run::Refusal& refusal) {
      EXPECT_EQ(refusal.code, 2) << text;
      EXPECT_THAT(refusal.text, HasSubstr(text));
      EXPECT_THAT(refusal.text, testing::StartsWith("tutti-bench: "));
      EXPECT_EQ(refusal.text.find('\n'), refusal.text.size() - 1) << refusal.text;
    }
  }
}

TEST(BenchCommandLine, HelpNamesEveryCaseAndItsOptions) {
  const auto help = [](const std::vector<std::string>& words) {
    try {
      parse_command_line(words);
    } catch (const run::Refusal& refusal) {
      EXPECT_EQ(refusal.code, 0);
      return refusal.text;
    }
    return std::string("taken");
  };
  const auto overview = help({"--help"});
  EXPECT_EQ(help({"--version"}), fmt::format("tutti-bench {}\n", kVersion));
  for (const auto& entry : all_cases()) {
    EXPECT_THAT(overview, HasSubstr(std::string(entry.name)));
    EXPECT_THAT(help({std::string(entry.name), "--help"}), HasSubstr("--json"));
  }
  EXPECT_THAT(help({"gradients", "--help"}), HasSubstr("Engine CPU per tensor"));
}

}  // namespace
}  // namespace tutti::bench
