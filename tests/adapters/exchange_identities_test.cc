// Pairs of methods that must give the same result, on ranks that are processes and threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/adapters/exchange_trainer.h"
#include "tests/support/ranks.h"

namespace tutti::test {
namespace {

bool is_power_of_two(int number) { return (number & (number - 1)) == 0; }

// Exact if all numbers are short binary fractions, as the means of 1, 2 and 4 ranks are.
void expect_same(const Communicator& comm, const std::vector<float>& got,
                 const std::vector<float>& expected, bool exact, float tolerance = 1e-6F) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const float bound = exact && is_power_of_two(comm.size())
                            ? 0
                            : tolerance * std::max(1.0F, std::abs(expected[i]));
    EXPECT_NEAR(got[i], expected[i], bound)
        << "element " << i << ", rank " << comm.rank() << " of " << comm.size();
  }
}

// Makes two runs add up in the same order.
void in_rank_order(Options& options) { options.determinism = Determinism::rank_order; }

void local_sgd_of_one_step_is_synchronous(Communicator& comm) {
  expect_same(comm, run_exchange(comm, {.policy = local_sgd(1)}),
              run_exchange(comm, {.policy = synchronous()}), true);
}

// The learning rate changes, so the test fails if the momentum does not account for it.
void slow_momentum_of_one_step_is_momentum(Communicator& comm) {
  const auto rate = [](int step) { return step < 3 ? 0.5 : 0.125; };
  expect_same(
      comm, run_exchange(comm, {.policy = slow_momentum_sgd(1, 0.75), .steps = 8, .rate = rate}),
      run_exchange(comm, {.policy = synchronous(), .steps = 8, .momentum = 0.75F, .rate = rate}),
      false);
}

void slow_momentum_without_momentum_is_local_sgd(Communicator& comm) {
  expect_same(comm, run_exchange(comm, {.policy = slow_momentum_sgd(3, 0)}),
              run_exchange(comm, {.policy = local_sgd(3)}), true);
}

void plain_diloco_is_local_sgd(Communicator& comm) {
  expect_same(comm, run_exchange(comm, {.policy = diloco(3, 1, 0), .momentum = 0.5F}),
              run_exchange(comm, {.policy = local_sgd(3), .momentum = 0.5F}), true);
}

void one_fragment_on_time_is_diloco(Communicator& comm) {
  const auto streamed =
      run_exchange(comm, {.policy = streaming_diloco(3, 1), .steps = 9, .momentum = 0.5F});
  const auto whole = run_exchange(comm, {.policy = diloco(3), .steps = 9, .momentum = 0.5F});
  EXPECT_EQ(streamed, whole) << "rank " << comm.rank() << " of " << comm.size();
}

void adasum_of_changes_of_one_step_is_that_of_gradients(Communicator& comm) {
  // The factors divide by squared norms, so the rounding errors of f32 grow about tenfold.
  expect_same(comm, run_exchange(comm, {.policy = adasum_of_changes(1), .steps = 4}),
              run_exchange(comm, {.policy = adasum_of_gradients(), .steps = 4}), false, 1e-5F);
}

struct Identity {
  const char* name;
  void (*check)(Communicator& comm);
};
const std::vector<Identity>& identities() {
  static const std::vector<Identity> kIdentities = {
      {"local_sgd_of_one_step_is_synchronous", local_sgd_of_one_step_is_synchronous},
      {"slow_momentum_of_one_step_is_momentum", slow_momentum_of_one_step_is_momentum},
      {"slow_momentum_without_momentum_is_local_sgd", slow_momentum_without_momentum_is_local_sgd},
      {"plain_diloco_is_local_sgd", plain_diloco_is_local_sgd},
      {"one_fragment_on_time_is_diloco", one_fragment_on_time_is_diloco},
      {"adasum_of_changes_of_one_step_is_that_of_gradients",
       adasum_of_changes_of_one_step_is_that_of_gradients},
  };
  return kIdentities;
}

// These tests run first, because processes are forked before this program has threads.
class ExchangeOnProcesses : public testing::TestWithParam<Identity> {};
TEST_P(ExchangeOnProcesses, Holds) {
  for (const int size : {2, 3}) run_processes(size, GetParam().check, in_rank_order);
}
INSTANTIATE_TEST_SUITE_P(Identities, ExchangeOnProcesses, testing::ValuesIn(identities()),
                         [](const auto& test) { return std::string(test.param.name); });

class ExchangeOnThreads : public testing::TestWithParam<Identity> {};
TEST_P(ExchangeOnThreads, Holds) {
  for (int size = 1; size <= 5; ++size) run_threads(size, GetParam().check, in_rank_order);
}
INSTANTIATE_TEST_SUITE_P(Identities, ExchangeOnThreads, testing::ValuesIn(identities()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace tutti::test
