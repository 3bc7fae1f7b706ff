// The suites of the CPU's layers run on the simulated GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/nn/hosted_layers.h"
#include "tests/nn/layer_check.h"
#include "tutti/adapters/nn/kernels/layer_kernels.h"

namespace tutti {
namespace {

// A violation fails the case in which it happened.
class NoFaults final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override {
    EXPECT_THAT(test::fake_cuda().take_faults(), testing::IsEmpty());
  }
};

const bool kIsChosen = [] {
  test::layers_under_test = [] {
    return std::make_unique<test::HostedLayers>(Device{DeviceKind::fake, 0});
  };
  testing::UnitTest::GetInstance()->listeners().Append(new NoFaults);
  return test::layers_round_twice = true;
}();

// Without this check the suite could test the CPU and pass.
TEST(LayerKernels, AreTheFakes) {
  EXPECT_TRUE(kIsChosen && test::layers_round_twice);
  const auto before = test::fake_cuda().calls();
  const auto x = test::noise_tensor(Shape{4, 3}, 1), w = test::noise_tensor(Shape{2, 3}, 2);
  test::layers_under_test()->linear_forward(x, w, TensorView(), Tensor(Shape{4, 2}, DataType::f32));
  EXPECT_EQ(test::fake_cuda().calls()["cublasLtMatmul"] -
                (before.contains("cublasLtMatmul") ? before.at("cublasLtMatmul") : 0),
            1);
}

}  // namespace
}  // namespace tutti
