#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>

#include "tutti/core/launch/slurm_list.h"

namespace tutti {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(SlurmList, CountsHostsAndNamesTheFirst) {
  const auto read = [](const char* text) {
    const auto hosts = read_host_list(text);
    return hosts ? std::pair(hosts->first, hosts->count)
                 : std::pair(std::string("none"), size_t{0});
  };
  EXPECT_THAT(read("login"), Pair("login", 1));
  EXPECT_THAT(read("n[1-3,07]"), Pair("n1", 4));
  EXPECT_THAT(read("n[07,1-3]"), Pair("n07", 4));
  EXPECT_THAT(read("n[08-10]"), Pair("n08", 3));
  EXPECT_THAT(read("a,b[1,3]-ib,c.d"), Pair("a", 4));
  EXPECT_THAT(read("b[3,1]-ib,a"), Pair("b3-ib", 3));
  EXPECT_THAT(read("r[1-2]n[0-1]"), Pair("r1n0", 4));
  EXPECT_THAT(read("n[1-65536]"), Pair("n1", 65536));
  EXPECT_THAT(read("r[1-256]n[1-256]"), Pair("r1n1", 65536));
}

TEST(SlurmList, RefusesWhatIsNoHostList) {
  for (const char* text : {"", ",", "a,,b", "n[", "n]", "n[]", "n[1-]", "n[-1]", "n[3-1]", "n[a]",
                           "n[[1]]", "n[1-9999999]", "n[1-60000]m[1-60000]", "n[1]]", "n[1-65537]",
                           "n[1-60000,1-60000]", "n[1-60000],m[1-60000]"})
    EXPECT_FALSE(read_host_list(text)) << text;
}

TEST(SlurmList, RefusesNamesThatNoHostHas) {
  EXPECT_TRUE(read_host_list(std::string(255, 'n')));
  EXPECT_FALSE(read_host_list(std::string(256, 'n')));
  EXPECT_TRUE(read_host_list("n[1-60000]" + std::string(249, 'x')));
  EXPECT_FALSE(read_host_list("n[1-60000]" + std::string(250, 'x')));
  EXPECT_FALSE(read_host_list(std::string(251, 'n') + "[1-60000]"));
  EXPECT_FALSE(read_host_list(std::string(251, 'n') + "[00001]"));
}

TEST(SlurmList, ExpandsTaskCounts) {
  EXPECT_THAT(*expand_task_counts("4"), ElementsAre(4));
  EXPECT_THAT(*expand_task_counts("4,1(x2)"), ElementsAre(4, 1, 1));
  EXPECT_THAT(*expand_task_counts("2(x3),1"), ElementsAre(2, 2, 2, 1));
}

TEST(SlurmList, RefusesWhatIsNoTaskCount) {
  for (const char* text :
       {"", "a", "4,", "4(x)", "4(x0)", "4(2)", "(x2)", "4(x2", "-1", "4(x2)1", "1(x99999999)"})
    EXPECT_FALSE(expand_task_counts(text)) << text;
}

TEST(SlurmList, SurvivesGarbage) {
  const unsigned seed = 20261121;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::string letters = "n01239[]-,(x)";
  for (int i = 0; i < 20'000; ++i) {
    std::string text(random() % 16, ' ');
    for (auto& c : text) c = letters[random() % letters.size()];
    if (const auto hosts = read_host_list(text)) {
      EXPECT_GT(hosts->count, 0u) << text;
      EXPECT_FALSE(hosts->first.empty()) << text;
      EXPECT_EQ(hosts->first.find_first_of("[],"), std::string::npos) << text;
    }
    if (const auto counts = expand_task_counts(text)) {
      EXPECT_FALSE(counts->empty()) << text;
    }
  }
}

}  // namespace
}  // namespace tutti
