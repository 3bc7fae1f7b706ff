// StepMeter: the line of each step, and the rate of all steps but the first.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/ranks.h"
#include "tutti/adapters/nn/steps/steps.h"
#include "tutti/nn.h"

namespace tutti::nn {
namespace {

using testing::EndsWith;
using testing::StartsWith;

TEST(StepMeter, TellsEachStepAndTheRateOfAllButTheFirst) {
  test::run_threads(2, [](Communicator& comm) {
    StepMeter meter(comm);
    EXPECT_EQ(meter.rate(10, "tokens"), "");
    EXPECT_EQ(meter.seconds_per_step(), 0);
    double waited = 0, took = 0, at_most = 0;  // sums over all steps but the first
    for (int step = 0; step < 3; ++step) {
      comm.barrier_blocking();
      const auto before_all = Clock::now();
      meter.begin();
      const auto begin = Clock::now();
      // Rank 1 comes late, so rank 0 waits. How long depends on when its own thread runs.
      if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(40));
      const double before = comm.statistics().exposed_seconds;
      std::vector<float> value = {1};
      comm.allreduce("step " + std::to_string(step), std::span(value)).wait();
      const std::chrono::duration<double> elapsed = Clock::now() - begin;
      if (step > 0) {
        waited += comm.statistics().exposed_seconds - before;
        took += elapsed.count();
      }
      const auto line =
          meter.end(step, {.is_skipped = step == 1, .loss = 1.25, .samples = 4, .norm = 0.5});
      if (step > 0) at_most += std::chrono::duration<double>(Clock::now() - before_all).count();
      EXPECT_THAT(line, StartsWith("step " + std::to_string(step) + "  loss 1.250000  norm 0.5  "));
      double milliseconds = 0;
      long long messages = -1;
      ASSERT_EQ(std::sscanf(line.c_str(), "step %*d  loss %*f  norm %*f  %lf ms  %lld messages",
                            &milliseconds, &messages),
                2);
      EXPECT_GE(milliseconds, 1e3 * elapsed.count() - 0.05);  // the line is rounded
      if (comm.rank() == 1) {
        EXPECT_GE(milliseconds, 39);
      }
      EXPECT_GT(messages, 0);  // each step uses a new name, which is negotiated
      EXPECT_THAT(line, EndsWith(step == 1 ? " messages  skipped" : " messages"));
      if (step == 0) {
        EXPECT_EQ(meter.rate(10, "tokens"), "");
      }
    }
    double rate = 0, exposed = -1;
    ASSERT_EQ(std::sscanf(meter.rate(10, "tokens").c_str(), "%lf tokens/s, exposed %lf %%", &rate,
                          &exposed),
              2);
    EXPECT_GE(meter.seconds_per_step(), took / 2);
    EXPECT_LE(meter.seconds_per_step(), at_most / 2);
    if (comm.rank() == 1) {
      EXPECT_GE(meter.seconds_per_step(), 0.039);
    }
    EXPECT_NEAR(rate, 10 / meter.seconds_per_step(), 0.01);
    EXPECT_NEAR(exposed, 100 * waited / (2 * meter.seconds_per_step()), 0.06);
  });
}

TEST(StepMeter, ParametersAreCounted) {
  Sequential model(1);
  model.add("fc", linear(3, 5)).add("tanh", nn::tanh()).add("out", linear(5, 2, {.bias = false}));
  EXPECT_EQ(model.parameter_count(), 3 * 5 + 5 + 5 * 2);
}

}  // namespace
}  // namespace tutti::nn
