#include "tests/core/scheduling/steady_steps.h"

namespace tutti::test {
namespace {

class TenThousandSteps : public testing::TestWithParam<SteadyCase> {};
INSTANTIATE_TEST_SUITE_P(Jobs, TenThousandSteps, testing::ValuesIn(steady_cases()), name_of_case);

TEST_P(TenThousandSteps, AskForNothingAndAllocateNothing) { run_steadily(GetParam(), 10'000, 900); }

}  // namespace
}  // namespace tutti::test
