#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tools/run/output.h"

namespace tutti::run {
namespace {

using testing::ElementsAre;

std::string prefixed(const std::vector<std::string>& pieces) {
  std::string text;
  LineOutput output("[0] ", [&](std::string_view more) { text += more; });
  for (const auto& piece : pieces) output.take(piece);
  output.finish();
  return text;
}

TEST(LineOutput, PrefixesWholeLines) {
  EXPECT_EQ(prefixed({"a\nb\n"}), "[0] a\n[0] b\n");
  EXPECT_EQ(prefixed({"a", "b", "\n", "c"}), "[0] ab\n[0] c\n");
  EXPECT_EQ(prefixed({"\n\n"}), "[0] \n[0] \n");
  EXPECT_EQ(prefixed({}), "");
}

TEST(LineOutput, LetsProgressBarsWriteOverThemselves) {
  EXPECT_EQ(prefixed({"10 %\r20 %\rdone\n"}), "[0] 10 %\r[0] 20 %\r[0] done\n");
  EXPECT_EQ(prefixed({"a\r", "\nb\r\n"}), "[0] a\r\n[0] b\r\n");
}

TEST(LineOutput, WaitsForTheEndOfALine) {
  std::string text;
  LineOutput output("", [&](std::string_view more) { text += more; });
  output.take("half");
  EXPECT_EQ(text, "");
  output.take(" whole\n");
  EXPECT_EQ(text, "half whole\n");
}

TEST(LineOutput, BreaksEndlessLines) {
  const std::string endless(3 * LineOutput::kLongestLine + 1, 'x');
  const std::string whole(LineOutput::kLongestLine, 'x');
  EXPECT_EQ(prefixed({endless}),
            "[0] " + whole + "\n[0] " + whole + "\n[0] " + whole + "\n[0] x\n");
}

TEST(LineOutput, DoesNotMindHowItIsCut) {
  const unsigned seed = 20261121;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::string text = "one\ntwo\r\n\n\rthree\rfour";
  const auto whole = prefixed({text});
  for (int i = 0; i < 200; ++i) {
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t count = 1 + random() % 6;
      pieces.push_back(text.substr(at, count));
      at += count;
    }
    EXPECT_EQ(prefixed(pieces), whole);
  }
}

TEST(LastLines, AreKept) {
  LastLines last;
  EXPECT_THAT(last.lines(), ElementsAre());
  for (int i = 0; i < 25; ++i) last.take("line " + std::to_string(i) + "\n");
  last.take("half");
  const auto lines = last.lines();
  ASSERT_EQ(lines.size(), LastLines::kLines);
  EXPECT_EQ(lines.front(), "line 16");
  EXPECT_EQ(lines.back(), "half");
}

TEST(RankPrefix, HasColoursIfWanted) {
  EXPECT_EQ(rank_prefix(3, false), "[3] ");
  EXPECT_EQ(rank_prefix(3, true), "\033[34m[3]\033[0m ");
  EXPECT_NE(rank_prefix(0, true).substr(0, 5), rank_prefix(1, true).substr(0, 5));
}

}  // namespace
}  // namespace tutti::run
