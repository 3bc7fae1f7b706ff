#include "tests/core/scheduling/plan_fuzz.h"

namespace tutti {

// The simulation draws such steps by the thousand; here they run on threads.
TEST(PlanFuzz, FiveSeeds) { test::run_seeds(1, 5); }

}  // namespace tutti
