// Runs twenty steps of each job every day; steady_steps_full_test.cc runs ten thousand.

#include "tests/core/scheduling/steady_steps.h"

namespace tutti::test {
namespace {

class SteadySteps : public testing::TestWithParam<SteadyCase> {};
INSTANTIATE_TEST_SUITE_P(Jobs, SteadySteps, testing::ValuesIn(steady_cases()), name_of_case);

TEST_P(SteadySteps, AskForNothingAndAllocateNothing) { run_steadily(GetParam(), 20, 60); }

}  // namespace
}  // namespace tutti::test
