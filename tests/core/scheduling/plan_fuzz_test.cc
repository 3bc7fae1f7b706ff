#include "tests/core/scheduling/plan_fuzz.h"

namespace tutti {

TEST(PlanFuzz, FiftySeeds) { test::run_seeds(1, test::repetitions(50)); }

}  // namespace tutti
