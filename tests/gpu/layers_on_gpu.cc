// The suites of the CPU's layers, and optimizer steps, on a GPU. Without a GPU all cases are
// skipped with a reason.

#include <gtest/gtest.h>

#include "tests/fake_cuda/step_check.h"
#include "tests/nn/hosted_layers.h"
#include "tests/nn/layer_check.h"
#include "tests/support/gpu.h"
#include "tutti/adapters/nn/kernels/layer_kernels.h"

namespace tutti {
namespace {

class NeedsGpu final : public testing::Environment {
  void SetUp() override {
    if (const auto reason = test::why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

const bool kIsChosen = [] {
  testing::AddGlobalTestEnvironment(new NeedsGpu);
  test::layers_under_test = [] {
    return std::make_unique<test::HostedLayers>(Device{DeviceKind::cuda, 0});
  };
  return test::layers_round_twice = true;
}();

// Without this check the suites could test the CPU and pass.
TEST(LayerKernels, AreTheGpus) {
  EXPECT_TRUE(kIsChosen && test::layers_round_twice);
  EXPECT_NE(dynamic_cast<test::HostedLayers*>(test::layers_under_test().get()), nullptr);
}

TEST(GpuSteps, AdamEqualsTheCpusToTheBit) {
  test::expect_adam_steps_as_on_the_cpu_to_the_bit(
      *make_layer_kernels(Device{DeviceKind::cuda, 0}));
}
TEST(GpuSteps, LarsAndLambAreTheCpus) {
  test::expect_lars_and_lamb_step_as_on_the_cpu(*make_layer_kernels(Device{DeviceKind::cuda, 0}));
}

}  // namespace
}  // namespace tutti
