// Whatever ends a job while it saves, the newest complete checkpoint stays. Runs many repetitions.

#include "tests/adapters/checkpoint_faults.h"

namespace tutti {
namespace {

TEST(CheckpointFaultsOften, KilledAtAnyMoment) {
  test::jobs_are_killed(200, std::random_device{}());
}

TEST(CheckpointFaultsOften, ARankIsLost) { test::ranks_are_lost(50, std::random_device{}()); }

TEST(CheckpointFaultsOften, ADiskIsFull) { test::disks_are_full(50, std::random_device{}()); }

}  // namespace
}  // namespace tutti
