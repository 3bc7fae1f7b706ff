// Runs the jobs of fork_test a hundred times.

#include <gtest/gtest.h>

#include "tests/core/fork_jobs.h"

namespace tutti {
namespace {

TEST(ForkFull, ParentsAndPeersDoNotNoticeAHundredTimes) {
  for (uint64_t seed = 100; seed < 150; ++seed)
    for (const char* backend : {"shm", "tcp"}) test::run_forking_job(seed, backend);
}

}  // namespace
}  // namespace tutti
