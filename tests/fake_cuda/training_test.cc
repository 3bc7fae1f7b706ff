// Training on the simulated GPU: LeNet learns its digits on ranks that are threads and share the
// GPU, in every type, with the same bits each time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/nn/digits_training.h"

namespace tutti::nn {
namespace {

constexpr Device kFake{DeviceKind::fake, 0};

// Trains on ranks that share the fake GPU, which must report no fault.
test::Trained train_on_fake(int ranks, DataType dtype, const std::string& backend,
                            const test::DigitsMethod& method = {}) {
  auto trained = test::train_thread_ranks(kFake, ranks, dtype, backend, method);
  EXPECT_THAT(test::fake_cuda().take_faults(), testing::IsEmpty());
  return trained;
}

using Training = std::tuple<int, DataType, const char*>;  // ranks, type, backend

class TrainsOnFakeCuda : public testing::TestWithParam<Training> {};

TEST_P(TrainsOnFakeCuda, To97Percent) {
  const auto [ranks, dtype, backend] = GetParam();
  // bf16 has only eight bits of mantissa, so it needs more epochs.
  const test::DigitsMethod method{.epochs = dtype == DataType::bf16 ? 6 : 4};
  EXPECT_GE(train_on_fake(ranks, dtype, backend, method).right, 97);
}
const auto name_of = [](const auto& info) {
  const auto [ranks, dtype, backend] = info.param;
  return std::to_string(ranks) + "_" + std::string(to_string(dtype)) + "_" + backend;
};
INSTANTIATE_TEST_SUITE_P(
    Full, TrainsOnFakeCuda,
    testing::Values(Training(1, DataType::f32, "peer"), Training(1, DataType::bf16, "peer"),
                    Training(1, DataType::f16, "peer"), Training(2, DataType::f32, "peer"),
                    Training(2, DataType::bf16, "peer"), Training(2, DataType::f16, "peer"),
                    Training(4, DataType::f32, "peer"), Training(4, DataType::bf16, "peer"),
                    Training(4, DataType::f16, "peer"), Training(2, DataType::f32, "memory"),
                    Training(2, DataType::f16, "memory")),
    name_of);

TEST(FakeCudaTraining, LearnsInOneEpochOfSixteenBits) {
  EXPECT_GE(train_on_fake(2, DataType::f16, "peer", {.epochs = 1}).right, 90);
}

TEST(FakeCudaTraining, HasTheSameBitsInEveryRunAndThroughEveryBackend) {
  for (const auto dtype : {DataType::f32, DataType::bf16, DataType::f16}) {
    const auto first = train_on_fake(2, dtype, "peer", {.steps = 6});
    for (const auto* backend : {"peer", "memory"}) {
      const auto second = train_on_fake(2, dtype, backend, {.steps = 6});
      EXPECT_EQ(first.parameters, second.parameters) << to_string(dtype) << " " << backend;
    }
  }
}

TEST(FakeCudaTraining, FiftyStepsAreTheCpus) {
  test::DigitsMethod method{.steps = 0, .learning_rate = 0.001, .momentum = 0};
  const auto begin = test::train_thread_ranks({}, 1, DataType::f32, "memory", method);
  method.steps = 50;
  const auto cpu = test::train_thread_ranks({}, 1, DataType::f32, "memory", method);
  EXPECT_GE(largest_difference(cpu, begin), 1e-3f);
  EXPECT_LE(largest_difference(cpu, train_on_fake(1, DataType::f32, "memory", method)), 1e-4f);
}

}  // namespace
}  // namespace tutti::nn
