#include "tests/core/scheduling/plan_fuzz.h"

namespace tutti {

TEST(PlanFuzz, AThousandSeeds) { test::run_seeds(1000, 1000); }

}  // namespace tutti
