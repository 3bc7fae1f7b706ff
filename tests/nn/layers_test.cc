// Models made of layers: gradients compared with finite differences, names, contexts and refusals.

#include "tutti/adapters/nn/layers/layers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/nn/layer_check.h"
#include "tests/support/expect_error.h"
#include "tutti/adapters/nn/layers/loss.h"
#include "tutti/adapters/nn/sequential.h"
#include "tutti/base/error.h"

namespace tutti::nn {
namespace {

Sequential small_net(uint64_t seed) {
  Sequential model(seed);
  model.add("conv", conv2d(1, 2, 3, {.stride = 1, .padding = 1}))
      .add("tanh", nn::tanh())
      .add("pool", average_pool2d(2))
      .add("flatten", flatten())
      .add("fc", linear(2 * 3 * 3, 4));
  return model;
}

TEST(Sequential, GradientsEqualDifferences) {
  auto model = small_net(3);
  const auto images = test::noise_tensor(Shape{2, 1, 6, 6}, 5);
  Tensor labels(Shape{2}, DataType::i64);
  labels.as<int64_t>()[0] = 1;
  labels.as<int64_t>()[1] = 3;
  const auto loss = [&] { return CrossEntropy(model.forward(images), labels).value(); };
  model.zero_grad();
  CrossEntropy first(model.forward(images), labels);
  model.backward(first);
  for (const auto& parameter : model.parameters())
    for (int64_t i = 0; i < parameter.value.count(); ++i) {
      float& value = parameter.value.as<float>()[i];
      const float kept = value;
      constexpr float kStep = 1e-2f;
      value = kept + kStep;
      const double up = loss();
      value = kept - kStep;
      const double down = loss();
      value = kept;
      EXPECT_NEAR(parameter.gradient.as<float>()[i], (up - down) / (2 * kStep), 2e-3)
          << parameter.name << " " << i;
    }
}

TEST(Sequential, GradientsAddUpAndAreAnnouncedFromTheEnd) {
  auto model = small_net(1);
  std::vector<std::string> names;
  for (auto& parameter : model.parameters())
    *parameter.ready = [&](std::string_view name) { names.emplace_back(name); };
  Tensor images(Shape{1, 1, 6, 6}, DataType::f32), labels(Shape{1}, DataType::i64);
  for (float& pixel : images.span<float>()) pixel = 1;
  CrossEntropy loss(model.forward(images), labels);
  model.backward(loss);
  const float once = model.parameters().back().gradient.as<float>()[0];
  model.backward(loss);
  EXPECT_FLOAT_EQ(model.parameters().back().gradient.as<float>()[0], 2 * once);
  ASSERT_EQ(names.size(), 8u);
  EXPECT_EQ(names[0], "fc.weight");
  EXPECT_EQ(names[3], "conv.bias");
}

// Two batches are in the model at the same time; each must get the gradients that it gets alone.
TEST(Sequential, BatchesOnTheirWayDoNotMix) {
  auto model = small_net(3);
  const auto first = test::noise_tensor(Shape{2, 1, 6, 6}, 1);
  const auto second = test::noise_tensor(Shape{3, 1, 6, 6}, 2);
  const auto gradients = [&] {
    std::vector<test::Values> all;
    for (const auto& parameter : model.parameters())
      all.push_back(test::values_of(parameter.gradient));
    return all;
  };
  const Wanted both;
  const auto alone = [&](const Tensor& batch) {
    model.zero_grad();
    Context context;
    const auto output = model.forward(batch, context);
    const auto input_gradient = model.backward(context, output, both);
    return std::pair(test::values_of(input_gradient), gradients());
  };
  const auto [first_input, first_weights] = alone(first);
  const auto [second_input, second_weights] = alone(second);

  Context one, two;
  const auto one_output = model.forward(first, one), two_output = model.forward(second, two);
  model.zero_grad();
  EXPECT_EQ(test::values_of(model.backward(two, two_output, both)), second_input);
  EXPECT_EQ(gradients(), second_weights);
  model.zero_grad();
  EXPECT_EQ(test::values_of(model.backward(one, one_output, both)), first_input);
  EXPECT_EQ(gradients(), first_weights);
}

// Computes the input's gradient first and the weights' later, after other gradients, as pipelines
// do.
TEST(Sequential, GradientsOfWeightsCanComeLater) {
  auto model = small_net(3);
  int announced = 0;
  for (auto& parameter : model.parameters())
    *parameter.ready = [&](std::string_view) { ++announced; };
  const auto images = test::noise_tensor(Shape{2, 1, 6, 6}, 1);
  const auto gradients = [&] {
    std::vector<test::Values> all;
    for (const auto& parameter : model.parameters())
      all.push_back(test::values_of(parameter.gradient));
    return all;
  };
  Context context, other;
  const auto output = model.forward(images, context);
  const auto input_gradient = test::values_of(model.backward(context, output, {}));
  const auto weights = gradients();
  EXPECT_EQ(announced, 4);

  model.zero_grad();
  const auto zero = gradients();
  model.forward(images, context);
  model.forward(test::noise_tensor(Shape{2, 1, 6, 6}, 7), other);
  EXPECT_EQ(test::values_of(model.backward(context, output, {.input = true, .weights = false})),
            input_gradient);
  EXPECT_EQ(gradients(), zero);
  EXPECT_EQ(announced, 4);
  model.backward(other, output, {.input = true, .weights = false});
  EXPECT_FALSE(model.backward(context, output, {.input = false, .weights = true}));
  EXPECT_EQ(gradients(), weights);
  EXPECT_EQ(announced, 8);
}

TEST(Sequential, AnEmptyBatchHasNoGradient) {
  auto model = small_net(3);
  model.zero_grad();
  Context context;
  const auto output = model.forward(Tensor(Shape{0, 1, 6, 6}, DataType::f32), context);
  EXPECT_EQ(output.shape(), (Shape{0, 4}));
  const auto gradient = model.backward(context, output, {});
  EXPECT_EQ(gradient.shape(), (Shape{0, 1, 6, 6}));
  for (const auto& parameter : model.parameters())
    for (const float value : parameter.gradient.span<float>())
      ASSERT_EQ(value, 0) << parameter.name;
}

TEST(Sequential, BadShapesAndNamesAreRefused) {
  auto model = small_net(1);
  test::expect_refused("two layers are named \"fc\"; each needs its own name",
                       [&] { model.add("fc", relu()); });
  test::expect_refused(
      "layer conv: conv2d(1, 2, 3) got f32[2,3], expected f32, bf16 or f16 [batch, channels, "
      "height, width]",
      [&] {
        model.forward(Tensor(Shape{2, 3}, DataType::f32));
      });
  test::expect_refused(
      "layer conv: conv2d(1, 2, 3) got i64[2,1,6,6], expected f32, bf16 or f16 [batch, channels",
      [&] {
        model.forward(Tensor(Shape{2, 1, 6, 6}, DataType::i64));
      });
  Sequential window(1);
  window.add("conv", conv2d(1, 1, 5));
  test::expect_refused(
      ": every extent but the batch must be at least 1, the channels must be equal and the window "
      "must fit into the image",
      [&] {
        window.forward(Tensor(Shape{1, 1, 3, 3}, DataType::f32));
      });
  test::expect_refused("layers cannot run on 0 threads; expected at least 1",
                       [] { Sequential(1, 0); });
  test::expect_refused(
      "cross entropy got logits f32[2,4] and labels i64[3], expected f32[batch,classes] and "
      "i64[batch]",
      [] {
        CrossEntropy(Tensor(Shape{2, 4}, DataType::f32), Tensor(Shape{3}, DataType::i64));
      });
  Tensor labels(Shape{2}, DataType::i64);
  for (const int64_t label : {int64_t{4}, int64_t{-1}}) {
    labels.as<int64_t>()[1] = label;
    test::expect_refused("label " + std::to_string(label) + " is not a class of 4", [&] {
      CrossEntropy(Tensor(Shape{2, 4}, DataType::f32), labels);
    });
  }
}

}  // namespace
}  // namespace tutti::nn
