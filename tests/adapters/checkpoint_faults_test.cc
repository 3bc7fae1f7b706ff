// Whatever ends a job while it saves, the newest whole checkpoint stays: a few times; the rest runs
// in checkpoint_faults_full_test.

#include "tests/adapters/checkpoint_faults.h"

namespace tutti {
namespace {

TEST(CheckpointFaults, KilledAtAnyMoment) { test::jobs_are_killed(6, std::random_device{}()); }

TEST(CheckpointFaults, ARankIsLost) { test::ranks_are_lost(3, std::random_device{}()); }

TEST(CheckpointFaults, ADiskIsFull) { test::disks_are_full(5, std::random_device{}()); }

}  // namespace
}  // namespace tutti
