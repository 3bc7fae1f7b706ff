#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tutti/core/launch/slurm_list.h"

namespace tutti {
namespace {

using testing::ElementsAre;

TEST(SlurmList, ExpandsHosts) {
  EXPECT_THAT(*expand_host_list("login"), ElementsAre("login"));
  EXPECT_THAT(*expand_host_list("n[1-3,07]"), ElementsAre("n1", "n2", "n3", "n07"));
  EXPECT_THAT(*expand_host_list("n[08-10]"), ElementsAre("n08", "n09", "n10"));
  EXPECT_THAT(*expand_host_list("a,b[1,3]-ib,c.d"), ElementsAre("a", "b1-ib", "b3-ib", "c.d"));
  EXPECT_THAT(*expand_host_list("r[1-2]n[0-1]"), ElementsAre("r1n0", "r1n1", "r2n0", "r2n1"));
}

TEST(SlurmList, RefusesWhatIsNoHostList) {
  for (const char* text : {"", ",", "a,,b", "n[", "n]", "n[]", "n[1-]", "n[-1]", "n[3-1]", "n[a]",
                           "n[[1]]", "n[1-9999999]", "n[1-60000]m[1-60000]", "n[1]]"})
    EXPECT_FALSE(expand_host_list(text)) << text;
}

// A short text must not become 65,536 long names.
TEST(SlurmList, RefusesNamesThatNoHostHas) {
  EXPECT_TRUE(expand_host_list(std::string(255, 'n')));
  EXPECT_FALSE(expand_host_list(std::string(256, 'n')));
  EXPECT_FALSE(expand_host_list("n[1-60000]" + std::string(250, 'x')));
  EXPECT_FALSE(expand_host_list(std::string(251, 'n') + "[1-60000]"));
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
    if (const auto hosts = expand_host_list(text)) {
      EXPECT_FALSE(hosts->empty()) << text;
      for (const auto& host : *hosts) EXPECT_EQ(host.find_first_of("[],"), host.npos) << text;
    }
    if (const auto counts = expand_task_counts(text)) {
      EXPECT_FALSE(counts->empty()) << text;
    }
  }
}

}  // namespace
}  // namespace tutti
