#include "tools/bench/workload/gradient_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tutti/base/error.h"

namespace tutti::bench {
namespace {

int64_t elements(const std::vector<Gradient>& gradients) {
  int64_t sum = 0;
  for (const auto& gradient : gradients) sum += gradient.count;
  return sum;
}

TEST(GradientSet, TheBuiltInOnesAreThoseModels) {
  const auto resnet = load_gradient_set("resnet50");
  EXPECT_EQ(resnet.size(), 161u);
  EXPECT_EQ(elements(resnet), 25'557'032);
  EXPECT_EQ(resnet.front().name, "conv1.weight");
  EXPECT_EQ(resnet.front().count, 64 * 3 * 7 * 7);
  const auto gpt = load_gradient_set("gpt2");
  EXPECT_EQ(gpt.size(), 148u);
  EXPECT_EQ(elements(gpt), 124'439'808);
  const auto small = load_gradient_set("small1000");
  EXPECT_EQ(small.size(), 1000u);
  EXPECT_EQ(elements(small), 256'000);
}

TEST(GradientSet, ElementsReplaceTheCounts) {
  EXPECT_EQ(elements(load_gradient_set("resnet50", 64)), 161 * 64);
}

TEST(GradientSet, BrokenFilesAreNamedWithTheirLine) {
  for (const auto* line : {"0,w", "0,w,x", "0,w,0", "0,,5", "0,a,5"}) {
    EXPECT_THAT(test::error_of([&] {
                  parse_gradient_set(std::string("index,name,numel\n0,a,5\n") + line + "\n",
                                     "my.csv");
                }).what(),
                testing::HasSubstr("my.csv, line 3"));
  }
  EXPECT_THROW(parse_gradient_set("index,name,numel\n", "my.csv"), Error);
}

}  // namespace
}  // namespace tutti::bench
