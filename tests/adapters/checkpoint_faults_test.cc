// Whatever ends a job while it saves, the newest complete checkpoint stays. Runs few repetitions;
// checkpoint_faults_full_test runs more.

#include "tests/adapters/checkpoint_faults.h"

namespace tutti {
namespace {

TEST(CheckpointFaults, KilledAtAnyMoment) { test::jobs_are_killed(6, std::random_device{}()); }

TEST(CheckpointFaults, ARankIsLost) { test::ranks_are_lost(3, std::random_device{}()); }

TEST(CheckpointFaults, ADiskIsFull) { test::disks_are_full(5, std::random_device{}()); }

}  // namespace
}  // namespace tutti
