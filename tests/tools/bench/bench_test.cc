// Runs tutti-bench as a user does, with small sizes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/scratch_folder.h"
#include "tests/tools/run_program.h"
#include "tools/bench/cases/cases.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti::bench {
namespace {

using test::Program;
using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

std::vector<Json> parse_lines(const std::string& text) {
  std::vector<Json> rows;
  for (const auto& line : split_text(text, '\n'))
    if (!line.empty()) rows.push_back(Json::parse(line));
  return rows;
}

std::vector<std::string> bench(const std::vector<std::string>& words) {
  std::vector<std::string> all = {TUTTI_BENCH};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

// Options that make each case short.
std::vector<std::string> short_options(const Case& entry) {
  std::vector<std::string> words;
  const auto add = [&](unsigned group, std::vector<std::string> options) {
    if (entry.options & group) words.insert(words.end(), options.begin(), options.end());
  };
  add(kSizes, {"--bytes", "4,5000"});
  add(kTiming, {"--repetitions", "3", "--repetition-ms", "1"});
  add(kSet, {"--elements", "8"});
  add(kBackward, {"--backward-ms", "1"});
  add(kSteps, {"--steps", "20"});
  add(kCalls, {"--calls", "200"});
  add(kFresh, {"--repetitions", "2"});
  return words;
}

class BenchCase : public testing::TestWithParam<std::string> {};

TEST_P(BenchCase, TwoRanksOverShmAreRight) {
  const auto& entry = find_case(GetParam());
  auto words = bench({GetParam(), "--ranks", "2", "--backend", "shm", "--json", "-"});
  const auto more = short_options(entry);
  words.insert(words.end(), more.begin(), more.end());
  Program program(words);
  const int code = program.finish(100);
  if (GetParam().ends_with("device")) {
    try {
      device_runtime(DeviceKind::cuda);
    } catch (const Error& error) {
      EXPECT_NE(code, 0);
      EXPECT_EQ(program.output(), "");
      // Without the plugin, the text before the colon names the searched path, which differs.
      const std::string why = error.what();
      EXPECT_THAT(program.errors(), HasSubstr(why.substr(why.find(':'))));
      GTEST_SKIP() << error.what();
    }
  }
  const auto rows = parse_lines(program.output());
  ASSERT_FALSE(rows.empty()) << program.errors();
  for (const auto& row : rows) {
    EXPECT_EQ(row["program"], "tutti");
    EXPECT_EQ(row["case"], GetParam());
    EXPECT_EQ(row["ranks"], 2);
    EXPECT_EQ(row["transport"], "shm");
    EXPECT_EQ(row["wrong"], 0) << row;
    EXPECT_GE(row["max_us"], row["time_us"]);
    EXPECT_LE(row["min_us"], row["time_us"]);
    EXPECT_TRUE(!(entry.options & kTiming) || row["extra"]["preemptions"] >= 0) << row;
    EXPECT_GE(row["repetitions"], 1);
    EXPECT_GE(row["iterations"], 1);
    EXPECT_EQ(row.contains("p99_us"), GetParam() == "latency");
    EXPECT_TRUE(GetParam() == "overlap" || row["time_us"] > 0);
  }
  // `steady` fails if there is a single message or allocation too many.
  const bool holds = GetParam() != "steady" || rows.front()["extra"]["holds"].get<bool>();
  EXPECT_EQ(code, holds ? 0 : 1) << program.errors();
  EXPECT_THAT(program.errors(), HasSubstr("# tutti-bench " + GetParam()));
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : all_cases()) names.emplace_back(entry.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, BenchCase, testing::ValuesIn(case_names()),
                         [](const auto& info) { return info.param; });

// A folder for the files of one test.
class BenchFiles : public testing::Test {
 protected:
  std::string path(const char* name) const { return folder_.inside(name); }
  std::string contents(const char* name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  const test::ScratchFolder folder_;
};

TEST_F(BenchFiles, RowsAreAppendedAndThePlotIsReplaced) {
  for (int run = 0; run < 2; ++run) {
    Program program(bench({"allreduce", "--ranks", "1", "--bytes", "4,64", "--repetitions", "1",
                           "--repetition-ms", "1", "--way", "named", "--json", path("j"), "--csv",
                           path("c"), "--plot", path("p")}));
    ASSERT_EQ(program.finish(), 0) << program.errors();
    EXPECT_THAT(program.output(), AllOf(HasSubstr("out-of-place"), HasSubstr("busbw")));
  }
  const auto rows = parse_lines(contents("j"));
  ASSERT_EQ(rows.size(), 8u);  // 2 runs of 2 sizes, out of place and in place
  EXPECT_EQ(rows[0]["in_place"], false);
  EXPECT_EQ(rows[1]["in_place"], true);
  EXPECT_EQ(rows[2]["bytes"], 64);
  const auto lines = split_text(contents("c"), '\n');
  // The heading, the rows, and the empty text after the last line.
  EXPECT_EQ(lines.size(), 1u + 8u + 1u);
  EXPECT_THAT(lines[0], testing::StartsWith("program,case,"));
  const auto svg = contents("p");
  EXPECT_EQ(svg.find("<svg"), 0u);
  EXPECT_EQ(svg.find("<svg", 1), svg.npos);
}

TEST_F(BenchFiles, APlotOnStandardOutputLeavesWhatIsThere) {
  Program program({"/bin/sh", "-c",
                   fmt::format("echo a note >{0}; exec '{1}' allreduce --ranks 1 --bytes 4,64 "
                               "--repetitions 1 --repetition-ms 1 --plot - >>{0}",
                               path("o"), TUTTI_BENCH)});
  ASSERT_EQ(program.finish(), 0) << program.errors();
  EXPECT_THAT(contents("o"), AllOf(testing::StartsWith("a note\n"), HasSubstr("<svg")));
}

TEST(Bench, RunsUnderTheLauncherAndPins) {
  Program program({TUTTI_RUN, "-np", "2", TUTTI_BENCH, "allgather", "--bytes", "64", "--pin",
                   "--repetitions", "1", "--repetition-ms", "1"});
  EXPECT_EQ(program.finish(60), 0) << program.errors();
  EXPECT_THAT(program.output(), AllOf(HasSubstr("[0] # tutti-bench allgather --way named: 2 ranks"),
                                      HasSubstr("pinned")));
  EXPECT_THAT(program.output(), testing::Not(HasSubstr("[1]")));
}

TEST(Bench, BadInputIsOneLineAndCodeTwo) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"allreduce", "--bytes", "4.."}, "--bytes 4..: a size is missing"},
      {{"allreduce", "--backend", "none"}, "there is no backend \"none\""},
      {{"allreduce", "--json", "/no/such/folder/j"}, "--json /no/such/folder/j: cannot be written"},
      {{"sendrecv", "--ranks", "1"}, "sendrecv needs at least 2 ranks"},
      {{"allreduce", "--ranks", "1", "--way", "vector", "--place", "out"},
       "--way vector exists in place only"}};
  for (const auto& [words, text] : cases) {
    Program program(bench(words));
    EXPECT_EQ(program.finish(), 2) << text;
    EXPECT_EQ(program.output(), "");
    EXPECT_THAT(program.errors(), AllOf(testing::StartsWith("tutti-bench: "), HasSubstr(text)));
    EXPECT_EQ(program.errors().find('\n'), program.errors().size() - 1) << program.errors();
  }
}

TEST(Bench, RanksMustNotContradictTheLauncher) {
  Program program({TUTTI_RUN, "-np", "1", TUTTI_BENCH, "barrier", "--ranks", "2"});
  EXPECT_EQ(program.finish(), 2);
  EXPECT_THAT(program.errors(), HasSubstr("--ranks 2, but tutti-run says that there are 1"));
}

}  // namespace
}  // namespace tutti::bench
