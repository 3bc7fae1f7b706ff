#include "tests/core/scheduling/plan_fuzz.h"

namespace tutti {

// The simulation draws thousands of such steps. This test runs a few of them on threads.
TEST(PlanFuzz, FiveSeeds) { test::run_seeds(1, 5); }

}  // namespace tutti
