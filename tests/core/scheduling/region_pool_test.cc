#include <gtest/gtest.h>

#include "tests/backends/support/world.h"
#include "tutti/core/scheduling/run.h"

namespace tutti {
namespace {

class RegionPoolTest : public testing::Test {
 protected:
  std::unique_ptr<Backend> backend_ =
      std::move(test::make_backends(find_backend("memory"), 1).front());
  RegionPool pool_{*backend_};
};

TEST_F(RegionPoolTest, ASteadyStepAllocatesNothing) {
  uint64_t after_one = 0;
  for (int step = 0; step < 100; ++step) {
    std::vector<std::unique_ptr<Region>> regions;
    for (size_t i = 1; i <= 60; ++i) regions.push_back(pool_.take(i * 10'000));
    for (auto& region : regions) pool_.give_back(std::move(region));
    if (step == 0) after_one = pool_.allocations();
  }
  EXPECT_EQ(pool_.allocations(), after_one);
}

TEST_F(RegionPoolTest, ARegionIsHardlyLargerThanWasAskedFor) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{4097}, size_t{100'000},
                             (size_t{1} << 20) + 1, (size_t{3} << 20) - 5, size_t{5'000'001}}) {
    const auto region = pool_.take(bytes);
    EXPECT_GE(region->bytes(), bytes);
    EXPECT_LE(region->bytes(), bytes + std::max<size_t>(4096, bytes / 8)) << bytes;
  }
}

// One step with a huge tensor must not keep its memory for ever.
TEST_F(RegionPoolTest, WhatIsNotAskedForAgainGoesBack) {
  constexpr size_t kHuge = 64 << 20, kUsual = 10'000;
  pool_.give_back(pool_.take(kHuge));
  pool_.give_back(pool_.take(kUsual));
  EXPECT_GE(pool_.free_bytes(), kHuge);
  const auto allocations = pool_.allocations();
  for (uint64_t i = 0; i <= RegionPool::kForgetAfter + 1; ++i) pool_.give_back(pool_.take(kUsual));
  EXPECT_LT(pool_.free_bytes(), 2 * kUsual);
  EXPECT_EQ(pool_.allocations(), allocations);
}

TEST_F(RegionPoolTest, OfTooManyTheOneUnusedForLongestGoesBack) {
  std::vector<std::unique_ptr<Region>> regions;
  for (size_t i = 1; i <= 65; ++i) regions.push_back(pool_.take(i * 10'000));
  for (auto& region : regions) pool_.give_back(std::move(region));
  const auto allocations = pool_.allocations();
  pool_.give_back(pool_.take(650'000));
  EXPECT_EQ(pool_.allocations(), allocations);
  pool_.take(10'000);
  EXPECT_EQ(pool_.allocations(), allocations + 1);
}

}  // namespace
}  // namespace tutti
