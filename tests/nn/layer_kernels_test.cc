// What the comparison with the references on ordinary shapes (layers_test) leaves out: edges,
// refusals, threads.

#include "tutti/kernels/layers/layer_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/kernels/layers/layer_reference.h"

namespace tutti {
namespace {

using testing::HasSubstr;

std::vector<float> noise(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(random);
  return values;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(WindowCount, IsZeroWhereNoWindowFits) {
  EXPECT_EQ(window_count(28, 5, 1), 24);
  EXPECT_EQ(window_count(9, 2, 2), 4);
  EXPECT_EQ(window_count(7, 3, 2), 3);
  EXPECT_EQ(window_count(5, 5, 3), 1);
  EXPECT_EQ(window_count(4, 5, 1), 0);
  EXPECT_EQ(window_count(4, 5, 7), 0);
  EXPECT_EQ(window_count(0, 9, 2), 0);
  EXPECT_EQ(window_count(8, 2, 0), 0);
}

TEST(LayerKernelsEdges, OverlappingWindowsAndEqualMaxima) {
  LayerKernels kernels;
  for (const auto pooling : {Pooling::max, Pooling::average}) {
    const Pool2dShape shape{pooling, 2, 5, 8, 11, 3, 2};
    // Few different values, so that most windows hold their maximum more than once.
    auto input = noise(2 * 5 * 8 * 11, 7);
    for (float& value : input) value = std::floor(value * 2);
    const auto gradient = noise(2 * 5 * shape.output_height() * shape.output_width(), 8);
    std::vector<float> output(gradient.size()), expected(gradient.size());
    std::vector<std::byte> workspace(kernels.pool2d_workspace_bytes(shape));
    kernels.pool2d_forward(shape, input.data(), output.data(), workspace.data());
    pool2d_forward_reference(shape, input.data(), expected.data());
    std::vector<float> back(input.size()), back_expected(input.size());
    kernels.pool2d_backward(shape, gradient.data(), workspace.data(), back.data());
    pool2d_backward_reference(shape, input.data(), gradient.data(), back_expected.data());
    for (size_t i = 0; i < output.size(); ++i) ASSERT_NEAR(output[i], expected[i], 1e-6) << i;
    for (size_t i = 0; i < back.size(); ++i) ASSERT_NEAR(back[i], back_expected[i], 1e-6) << i;
  }
}

TEST(LayerKernelsEdges, EqualShapesOfTwoLayersDoNotMix) {
  LayerKernels kernels;
  const Pool2dShape shape{Pooling::max, 1, 1, 4, 4, 2, 2};
  const auto first = noise(16, 1), second = noise(16, 2), gradient = noise(4, 3);
  const auto bytes = kernels.pool2d_workspace_bytes(shape);
  std::vector<std::byte> first_workspace(bytes), second_workspace(bytes);
  std::vector<float> output(4), back(16), expected(16);
  kernels.pool2d_forward(shape, first.data(), output.data(), first_workspace.data());
  kernels.pool2d_forward(shape, second.data(), output.data(), second_workspace.data());
  kernels.pool2d_backward(shape, gradient.data(), first_workspace.data(), back.data());
  pool2d_backward_reference(shape, first.data(), gradient.data(), expected.data());
  EXPECT_EQ(back, expected);
}

TEST(LayerKernelsEdges, GradientsOfTheInputCanBeLeftOut) {
  LayerKernels kernels;
  const LinearShape linear{3, 4, 2};
  const Conv2dShape conv{2, 1, 5, 5, 3, 3, 1, 0};
  const auto input = noise(50, 1), weight = noise(27, 2), gradient = noise(54, 3);
  std::vector<float> weights(27), weights_too(27), bias(3), bias_too(3), inputs(50);
  kernels.linear_backward(linear, input.data(), weight.data(), gradient.data(), nullptr,
                          weights.data(), bias.data());
  kernels.linear_backward(linear, input.data(), weight.data(), gradient.data(), inputs.data(),
                          weights_too.data(), bias_too.data());
  EXPECT_EQ(weights, weights_too);
  EXPECT_EQ(bias, bias_too);
  kernels.conv2d_backward(conv, input.data(), weight.data(), gradient.data(), nullptr,
                          weights.data(), bias.data());
  kernels.conv2d_backward(conv, input.data(), weight.data(), gradient.data(), inputs.data(),
                          weights_too.data(), bias_too.data());
  EXPECT_EQ(weights, weights_too);
  EXPECT_EQ(bias, bias_too);
}

TEST(LayerKernelsEdges, LargeLogitsStayFinite) {
  LayerKernels kernels;
  const std::vector<float> logits{1e4f, -1e4f, 0.0f, -3e38f, 88.0f, 3e38f};
  const std::vector<int64_t> labels{0, 2};
  std::vector<float> log_probabilities(6), gradient(6), expected(6);
  const double loss = kernels.softmax_cross_entropy_forward(2, 3, logits.data(), labels.data(),
                                                            log_probabilities.data());
  // oneDNN approximates exp and log to a few units of the last place of 1.
  EXPECT_NEAR(
      loss,
      softmax_cross_entropy_forward_reference(2, 3, logits.data(), labels.data(), expected.data()),
      1e-5);
  kernels.softmax_cross_entropy_backward(2, 3, log_probabilities.data(), labels.data(),
                                         gradient.data());
  for (const float value : gradient) EXPECT_TRUE(std::isfinite(value));
}

TEST(LayerKernelsEdges, WhatDoesNotFitIsRefusedByName) {
  LayerKernels kernels;
  EXPECT_THAT(refusal([&] {
                kernels.linear_forward({0, 4, 2}, nullptr, nullptr, nullptr, nullptr);
              }),
              HasSubstr("linear cannot take batch 0, 4 inputs, 2 outputs"));
  EXPECT_THAT(
      refusal([&] {
        kernels.conv2d_forward({1, 1, 6, 6, 2, 9, 1, 0}, nullptr, nullptr, nullptr, nullptr);
      }),
      HasSubstr("conv2d cannot take images [1,1,6,6] with 2 filters of 9x9"));
  EXPECT_THAT(
      refusal([&] {
        kernels.conv2d_forward({1, 1, 6, 6, 2, 3, 0, 0}, nullptr, nullptr, nullptr, nullptr);
      }),
      HasSubstr("stride 0"));
  EXPECT_THAT(refusal([&] {
                kernels.pool2d_forward({Pooling::max, 1, 1, 2, 6, 3, 3}, nullptr, nullptr, nullptr);
              }),
              HasSubstr("pool2d cannot take images [1,1,2,6] with windows of 3x3"));
  const std::vector<float> logits(4);
  std::vector<float> output(4);
  for (const int64_t label : {int64_t{2}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    const std::vector<int64_t> labels{0, label};
    EXPECT_THAT(refusal([&] {
                  kernels.softmax_cross_entropy_forward(2, 2, logits.data(), labels.data(),
                                                        output.data());
                }),
                HasSubstr("label 1 of the batch is " + std::to_string(label)));
  }
  EXPECT_THAT(refusal([] { LayerKernels none(0); }), HasSubstr("0 threads"));
}

TEST(LayerKernelsEdges, TwoThreadsComputeTheSameLayer) {
  LayerKernels one, two(2);
  EXPECT_EQ(two.threads(), 2);
  const Conv2dShape shape{8, 3, 12, 12, 8, 3, 1, 1};
  const auto input = noise(8 * 3 * 12 * 12, 1), weight = noise(8 * 3 * 9, 2), bias = noise(8, 3);
  std::vector<float> expected(8 * 8 * 12 * 12), output(expected.size());
  one.conv2d_forward(shape, input.data(), weight.data(), bias.data(), expected.data());
  two.conv2d_forward(shape, input.data(), weight.data(), bias.data(), output.data());
  for (size_t i = 0; i < output.size(); ++i) ASSERT_NEAR(output[i], expected[i], 1e-5) << i;
  // Back on one thread the bits are one thread's again.
  two.set_threads(1);
  two.conv2d_forward(shape, input.data(), weight.data(), bias.data(), output.data());
  EXPECT_EQ(output, expected);
}

}  // namespace
}  // namespace tutti
