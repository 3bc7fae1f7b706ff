// The real cuDNN without a GPU: it gets the stored description of an H100. Every convolution of the
// examples must get a plan that keeps its promises. Skipped if cuDNN is not installed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "tests/support/expect_error.h"
#include "tutti/adapters/nn/kernels/cuda/trainer/convolutions.h"

namespace tutti::cuda {
namespace {

std::string description_of_an_h100() {
  std::ifstream file(TUTTI_H100_JSON);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class CudnnPlans : public testing::Test {
 protected:
  void SetUp() override {
    try {
      library_ = load_cudnn();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    options_.device_description = description_of_an_h100();
    ASSERT_THAT(options_.device_description, testing::HasSubstr("H100"));
  }
  Cudnn library_;
  ConvolutionPlanOptions options_;
};

struct Layer {
  ConvolutionOptions options;
  Shape image, weight;
};

std::vector<Layer> lenet(int64_t batch) {
  return {{{1, 2}, {batch, 1, 28, 28}, {6, 1, 5, 5}}, {{1, 0}, {batch, 6, 14, 14}, {16, 6, 5, 5}}};
}

// Lists every convolution of examples/resnet_synthetic, each shape once.
std::vector<Layer> resnet(int64_t batch, int64_t image, int64_t width,
                          const std::vector<int>& blocks) {
  std::vector<Layer> all{{{2, 3}, {batch, 3, image, image}, {width, 3, 7, 7}}};
  int64_t side = (image + 1) / 2, in = width;
  side = (side + 1) / 2;  // after pooling
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    const int64_t w = width << stage;
    for (int block = 0; block < std::min(2, blocks[stage]); ++block) {
      const int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      const int64_t after = (side + stride - 1) / stride;
      all.push_back({{1, 0}, {batch, in, side, side}, {w, in, 1, 1}});
      all.push_back({{stride, 1}, {batch, w, side, side}, {w, w, 3, 3}});
      all.push_back({{1, 0}, {batch, w, after, after}, {4 * w, w, 1, 1}});
      if (in != 4 * w) all.push_back({{stride, 0}, {batch, in, side, side}, {4 * w, in, 1, 1}});
      side = after;
      in = 4 * w;
    }
  }
  return all;
}

constexpr ConvolutionPass kPasses[] = {ConvolutionPass::forward, ConvolutionPass::backward_input,
                                       ConvolutionPass::backward_weights};

// Plans all layers; returns the largest workspace for each type.
std::map<DataType, int64_t> plan_all(Convolutions& convolutions, const std::vector<Layer>& layers) {
  std::map<DataType, int64_t> most;
  for (const auto dtype : {DataType::f32, DataType::bf16, DataType::f16})
    for (const auto& [options, image, weight] : layers)
      for (const auto pass : kPasses) {
        const auto& plan =
            convolutions.plan(pass, convolution_shape(options, image, weight), dtype, 16);
        most[dtype] = std::max(most[dtype], Convolutions::workspace_bytes(plan));
        EXPECT_GT(Convolutions::tried(plan), 0u);
      }
  return most;
}

TEST_F(CudnnPlans, EveryConvolutionOfTheExamplesHasOne) {
  Convolutions convolutions(library_, options_);
  const auto small = plan_all(convolutions, lenet(64));
  for (const auto& [dtype, bytes] : small) EXPECT_LE(bytes, 16 << 20) << to_string(dtype);
  // The small network of the tests, and ResNet-50.
  plan_all(convolutions, resnet(6, 32, 8, {1, 1}));
  const auto whole = plan_all(convolutions, resnet(8, 224, 64, {3, 4, 6, 3}));
  for (const auto& [dtype, bytes] : whole) EXPECT_LE(bytes, 64 << 20) << to_string(dtype);
}

TEST_F(CudnnPlans, AreKept) {
  Convolutions convolutions(library_, options_);
  const auto shape = convolution_shape({1, 1}, Shape{2, 8, 8, 8}, Shape{8, 8, 3, 3});
  const auto& first = convolutions.plan(ConvolutionPass::forward, shape, DataType::f32, 16);
  EXPECT_EQ(&first, &convolutions.plan(ConvolutionPass::forward, shape, DataType::f32, 16));
  convolutions.plan(ConvolutionPass::forward, shape, DataType::f32, 4);
  EXPECT_EQ(convolutions.plans(), 2u);
}

TEST_F(CudnnPlans, WhatNoEngineDoesIsAClearError) {
  options_.most_workspace = -1;
  Convolutions convolutions(library_, options_);
  test::expect_error(
      ErrorCode::unavailable,
      "engines does the weight gradient of the bf16 convolution of [2,8,8,8] with [8,8,3,3], "
      "stride 1, "
      "padding 1 within -1 bytes of workspace and with the same bits each time; keep this layer",
      [&] {
        convolutions.plan(ConvolutionPass::backward_weights,
                          convolution_shape({1, 1}, Shape{2, 8, 8, 8}, Shape{8, 8, 3, 3}),
                          DataType::bf16, 16);
      });
}

TEST_F(CudnnPlans, ADescriptionThatLacksAKeyIsAClearError) {
  options_.device_description = R"({"deviceVer":900})";
  Convolutions convolutions(library_, options_);
  test::expect_error(ErrorCode::internal, "cuDNN cannot finish a descriptor: ", [&] {
    convolutions.plan(ConvolutionPass::forward,
                      convolution_shape({1, 1}, Shape{2, 8, 8, 8}, Shape{8, 8, 3, 3}),
                      DataType::f32, 16);
  });
}

}  // namespace
}  // namespace tutti::cuda
