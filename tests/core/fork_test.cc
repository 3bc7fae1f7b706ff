// A fork of a rank leaves its parent's job untouched, whatever it does.

#include <gtest/gtest.h>

#include "tests/core/fork_jobs.h"
#include "tutti/base/process/fork_guard.h"

namespace tutti {
namespace {

TEST(Fork, GuardsKnowTheirProcessOverThreeGenerations) {
  const ForkGuard first;
  EXPECT_FALSE(first.forked());
  const pid_t child = ::fork();
  if (child == 0) {
    if (!first.forked()) ::_exit(1);
    const ForkGuard second;
    if (second.forked() || !first.forked()) ::_exit(2);
    const pid_t grandchild = ::fork();
    if (grandchild == 0) {
      if (!first.forked() || !second.forked()) ::_exit(3);
      const ForkGuard third;
      ::_exit(third.forked() || !first.forked() || !second.forked() ? 4 : 0);
    }
    int status = 0;
    ::waitpid(grandchild, &status, 0);
    ::_exit(second.forked() ? 5 : WEXITSTATUS(status));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(first.forked());
}

TEST(Fork, ParentsAndPeersDoNotNotice) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a fork may inherit the sanitizer's allocator locked by another thread";
#endif
  for (uint64_t seed = 0; seed < 3; ++seed)
    for (const char* backend : {"shm", "tcp"}) test::run_forking_job(seed, backend);
}

}  // namespace
}  // namespace tutti
