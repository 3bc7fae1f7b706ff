// The cost of a sentinel. It has its own program, so that no other test runs beside the
// measurement.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "tests/nn/layer_check.h"
#include "tests/support/ranks.h"
#include "tutti/nn.h"

namespace tutti::nn {
namespace {

// One check of all parameters must take less than 0.5 % of the time between two checks: here 20
// steps of a model with 1.4 million parameters.
TEST(Sentinel, CostsLittle) {
  constexpr int kEvery = 20;
  test::run_threads(1, [](Communicator& comm) {
    Sequential model(5);
    model.add("fc1", linear(600, 1200)).add("tanh", nn::tanh()).add("fc2", linear(1200, 600));
    Sentinel sentinel(comm, model.parameters(), 1);
    const auto input = test::noise_tensor(Shape{64, 600}, 1);
    const auto seconds = [](auto body) {
      double least = 1e9;
      for (int i = 0; i < 7; ++i) {
        const auto begin = Clock::now();
        body();
        least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
      }
      return least;
    };
    const double step = seconds([&] {
      const auto output = model.forward(input);
      model.backward(MeanSquaredError(output, input));
    });
    const double look = seconds([&] { sentinel.look(1); });
    std::printf("a look takes %.3f ms, a step %.3f ms: %.3f %% if every %d steps\n", look * 1e3,
                step * 1e3, 100 * look / (step * kEvery), kEvery);
    EXPECT_LT(look, 0.005 * step * kEvery);
  });
}

}  // namespace
}  // namespace tutti::nn
