#include "tutti/base/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace tutti {
namespace {

using testing::ElementsAre;
using testing::Optional;

std::string ranks(std::vector<int> list) { return format_ranks(list); }
std::string rank_set(std::vector<int> list) { return format_rank_set(list); }

TEST(FormatCount, KnowsOne) {
  EXPECT_EQ(format_count(0, "rank"), "0 ranks");
  EXPECT_EQ(format_count(1, "rank"), "1 rank");
  EXPECT_EQ(format_count(2, "row count"), "2 row counts");
}

TEST(FormatRanks, JoinsRunsOfThreeAndMore) {
  EXPECT_EQ(ranks({}), "none");
  EXPECT_EQ(ranks({3}), "3");
  EXPECT_EQ(ranks({0, 1}), "0 1");
  EXPECT_EQ(ranks({0, 1, 2}), "0-2");
  EXPECT_EQ(ranks({0, 1, 2, 5, 7, 8, 9}), "0-2 5 7-9");
  EXPECT_EQ(ranks({1, 2, 4, 5, 6, 7}), "1 2 4-7");
}

TEST(FormatRanks, NamesTheSet) {
  EXPECT_EQ(rank_set({3}), "rank 3");
  EXPECT_EQ(rank_set({0, 1, 2, 5}), "ranks 0-2 5");
}

std::optional<std::string> nearest(std::string_view word, std::vector<std::string> candidates) {
  return nearest_word(word, candidates);
}

TEST(NearestWord, FindsMisspellings) {
  const std::vector<std::string> names{"conv1.weight", "fc1.bias", "fc2.bias", "fc2.weight"};
  EXPECT_THAT(nearest("fc2.bais", names), Optional(std::string("fc2.bias")));
  EXPECT_THAT(nearest("conv1.weigth", names), Optional(std::string("conv1.weight")));
  EXPECT_THAT(nearest("c0nv1.wieght", names), Optional(std::string("conv1.weight")));
}

TEST(NearestWord, SaysNothingWhenNothingIsClose) {
  EXPECT_EQ(nearest("embedding", {"fc1.bias"}), std::nullopt);
  EXPECT_EQ(nearest("fc1.bias", {}), std::nullopt);
  // Three letters allow one edit, a third of them.
  EXPECT_EQ(nearest("abc", {"xyc"}), std::nullopt);
  EXPECT_THAT(nearest("abc", {"xbc"}), Optional(std::string("xbc")));
  EXPECT_THAT(nearest("a", {"b"}), Optional(std::string("b")));
  // At most four edits are allowed, however long the words are.
  EXPECT_EQ(nearest(std::string(30, 'a'), {std::string(25, 'a')}), std::nullopt);
  EXPECT_TRUE(nearest(std::string(30, 'a'), {std::string(26, 'a')}));
}

TEST(NearestWord, TheWordItselfIsNoCandidateAndTheFirstWinsATie) {
  EXPECT_EQ(nearest("weight", {"weight"}), std::nullopt);
  EXPECT_THAT(nearest("weight", {"weight", "weigh"}), Optional(std::string("weigh")));
  EXPECT_THAT(nearest("cat", {"bat", "rat"}), Optional(std::string("bat")));
  EXPECT_THAT(nearest("weighty", {"weights1", "weight"}), Optional(std::string("weight")));
}

TEST(ParseInteger, TakesWholeNumbersInRange) {
  EXPECT_THAT(parse_integer("42", 0, 100), Optional(42));
  EXPECT_THAT(parse_integer("-1", -1, 100), Optional(-1));
  EXPECT_THAT(parse_integer("9223372036854775807", 0, std::numeric_limits<int64_t>::max()),
              Optional(std::numeric_limits<int64_t>::max()));
  for (const auto* text : {"", " 1", "1 ", "+1", "1.0", "0x10", "1e3", "12a", "101", "-1",
                           "9223372036854775808", "99999999999999999999"})
    EXPECT_EQ(parse_integer(text, 0, 100), std::nullopt) << text;
}

TEST(ParseSize, TakesUnitsOf1024) {
  EXPECT_THAT(parse_size("0"), Optional(0));
  EXPECT_THAT(parse_size("100"), Optional(100));
  EXPECT_THAT(parse_size("64M"), Optional(64 << 20));
  EXPECT_THAT(parse_size("2k"), Optional(2048));
  EXPECT_THAT(parse_size("3G"), Optional(int64_t{3} << 30));
  EXPECT_THAT(parse_size("8589934591G"), Optional(int64_t{8589934591} << 30));
  for (const auto* text :
       {"", "M", "64MB", "64MBB", "-1", "1.5M", " 1M", "1 M", "8589934592G", "9223372036854775808"})
    EXPECT_EQ(parse_size(text), std::nullopt) << text;
}

TEST(ParseNumber, TakesFiniteDecimalsInRange) {
  EXPECT_THAT(parse_number("0.5", 0, 1), Optional(0.5));
  EXPECT_THAT(parse_number("1e-3", 0, 1), Optional(0.001));
  EXPECT_THAT(parse_number("1", 0, 1), Optional(1.0));
  for (const auto* text : {"", "nan", "inf", "-inf", "1e999", "1.1", "-0.1", "0.5s", " 0.5", "0,5"})
    EXPECT_EQ(parse_number(text, 0, 1), std::nullopt) << text;
}

TEST(IsOperationName, RefusesAControlCharacterWhereverItStands) {
  for (int c = 0; c < 256; ++c)
    for (size_t at = 0; at < 19; ++at) {
      std::string name(19, 'n');
      name[at] = static_cast<char>(c);
      EXPECT_EQ(is_operation_name(name), c >= 0x20 && c != 0x7f) << "byte " << c << " at " << at;
    }
  EXPECT_FALSE(is_operation_name(""));
  EXPECT_TRUE(is_operation_name(std::string(kLongestName, 'n')));
  EXPECT_FALSE(is_operation_name(std::string(kLongestName + 1, 'n')));
}

TEST(OneLine, CutsBetweenCharactersAndShowsNoControlOnes) {
  EXPECT_EQ(one_line("", 10), "");
  EXPECT_EQ(one_line("sample 17", 9), "sample 17");
  EXPECT_EQ(one_line("sample 17", 8), "sample 1");
  EXPECT_EQ(one_line("a\nb\tc\x7f"
                     "d\x1b",
                     20),
            "a b c d ");
  EXPECT_EQ(one_line("\xc3\xa4\xe2\x82\xac", 5), "\xc3\xa4\xe2\x82\xac");
  EXPECT_EQ(one_line("\xc3\xa4\xe2\x82\xac", 4), "\xc3\xa4");
  EXPECT_EQ(one_line("a\xff\xc3", 5), "a  ");
}

TEST(SplitText, KeepsEmptyParts) {
  EXPECT_THAT(split_text("a,b,c", ','), ElementsAre("a", "b", "c"));
  EXPECT_THAT(split_text("", ','), ElementsAre(""));
  EXPECT_THAT(split_text(",a,", ','), ElementsAre("", "a", ""));
}

TEST(Hash, IsXxh3) {
  // The published value of XXH3_64bits for no bytes.
  EXPECT_EQ(hash_text(""), 0x2d06800538d394c2u);
  EXPECT_NE(hash_text("a"), hash_text("b"));
  EXPECT_NE(hash_text("a"), hash_text("a", 1));
  const std::byte bytes[] = {std::byte{'a'}};
  EXPECT_EQ(hash_bytes(bytes, 5), hash_text("a", 5));
}

}  // namespace
}  // namespace tutti
