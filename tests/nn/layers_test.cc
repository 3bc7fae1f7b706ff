// The layers' kernels against their plain references, and their gradients against differences.

#include "tutti/adapters/nn/layers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tutti/adapters/nn/loss.h"
#include "tutti/adapters/nn/sequential.h"
#include "tutti/base/error.h"
#include "tutti/kernels/layers/layer_reference.h"

namespace tutti::nn {
namespace {

std::vector<float> noise(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

void expect_close(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 2e-5 * (1 + std::abs(b[i]))) << what << " at " << i;
}

TEST(LayerKernels, LinearEqualsItsReference) {
  LayerKernels kernels;
  for (const auto& [batch, inputs, outputs] :
       {std::array<int64_t, 3>{1, 1, 1}, {3, 7, 5}, {32, 400, 120}}) {
    const LinearShape shape{batch, inputs, outputs};
    const auto x = noise(batch * inputs, 1), w = noise(inputs * outputs, 2), b = noise(outputs, 3),
               dy = noise(batch * outputs, 4);
    std::vector<float> y(dy.size()), y_ref(dy.size());
    kernels.linear_forward(shape, x.data(), w.data(), b.data(), y.data());
    linear_forward_reference(shape, x.data(), w.data(), b.data(), y_ref.data());
    expect_close(y, y_ref, "output");
    std::vector<float> dx(x.size()), dw(w.size()), db(b.size()), dx_r(x.size()), dw_r(w.size()),
        db_r(b.size());
    kernels.linear_backward(shape, x.data(), w.data(), dy.data(), dx.data(), dw.data(), db.data());
    linear_backward_reference(shape, x.data(), w.data(), dy.data(), dx_r.data(), dw_r.data(),
                              db_r.data());
    expect_close(dx, dx_r, "input gradient");
    expect_close(dw, dw_r, "weight gradient");
    expect_close(db, db_r, "bias gradient");
  }
}

TEST(LayerKernels, Conv2dEqualsItsReference) {
  LayerKernels kernels;
  const Conv2dShape shapes[] = {
      {1, 1, 3, 3, 1, 3, 1, 0}, {2, 3, 9, 7, 4, 3, 2, 1}, {4, 6, 14, 14, 16, 5, 1, 2}};
  for (const auto& shape : shapes) {
    const auto x = noise(shape.batch * shape.input_channels * shape.height * shape.width, 1);
    const auto w =
        noise(shape.output_channels * shape.input_channels * shape.kernel * shape.kernel, 2);
    const auto b = noise(shape.output_channels, 3);
    const auto dy = noise(
        shape.batch * shape.output_channels * shape.output_height() * shape.output_width(), 4);
    std::vector<float> y(dy.size()), y_ref(dy.size());
    kernels.conv2d_forward(shape, x.data(), w.data(), b.data(), y.data());
    conv2d_forward_reference(shape, x.data(), w.data(), b.data(), y_ref.data());
    expect_close(y, y_ref, "output");
    std::vector<float> dx(x.size()), dw(w.size()), db(b.size()), dx_r(x.size()), dw_r(w.size()),
        db_r(b.size());
    kernels.conv2d_backward(shape, x.data(), w.data(), dy.data(), dx.data(), dw.data(), db.data());
    conv2d_backward_reference(shape, x.data(), w.data(), dy.data(), dx_r.data(), dw_r.data(),
                              db_r.data());
    expect_close(dx, dx_r, "input gradient");
    expect_close(dw, dw_r, "weight gradient");
    expect_close(db, db_r, "bias gradient");
  }
}

TEST(LayerKernels, PoolingAndActivationsEqualTheirReferences) {
  LayerKernels kernels;
  for (const auto pooling : {Pooling::max, Pooling::average}) {
    const Pool2dShape shape{pooling, 2, 3, 9, 8, 2, 2};
    const auto x = noise(2 * 3 * 9 * 8, 1);
    const auto dy = noise(2 * 3 * shape.output_height() * shape.output_width(), 2);
    std::vector<float> y(dy.size()), y_ref(dy.size()), dx(x.size()), dx_ref(x.size());
    std::vector<std::byte> workspace(kernels.pool2d_workspace_bytes(shape));
    kernels.pool2d_forward(shape, x.data(), y.data(), workspace.data());
    pool2d_forward_reference(shape, x.data(), y_ref.data());
    expect_close(y, y_ref, "pool");
    kernels.pool2d_backward(shape, dy.data(), workspace.data(), dx.data());
    pool2d_backward_reference(shape, x.data(), dy.data(), dx_ref.data());
    expect_close(dx, dx_ref, "pool gradient");
  }
  for (const auto activation : {Activation::relu, Activation::tanh}) {
    const auto x = noise(1001, 1), dy = noise(1001, 2);
    std::vector<float> y(1001), y_ref(1001), dx(1001), dx_ref(1001);
    kernels.activation_forward(activation, 1001, x.data(), y.data());
    activation_forward_reference(activation, 1001, x.data(), y_ref.data());
    expect_close(y, y_ref, "activation");
    kernels.activation_backward(activation, 1001, y.data(), dy.data(), dx.data());
    activation_backward_reference(activation, 1001, y_ref.data(), dy.data(), dx_ref.data());
    expect_close(dx, dx_ref, "activation gradient");
  }
}

TEST(LayerKernels, CrossEntropyEqualsItsReference) {
  LayerKernels kernels;
  const int64_t batch = 5, classes = 7;
  const auto logits = noise(batch * classes, 1);
  const std::vector<int64_t> labels{0, 6, 3, 3, 1};
  std::vector<float> p(logits.size()), p_ref(logits.size()), d(logits.size()), d_ref(logits.size());
  EXPECT_NEAR(
      kernels.softmax_cross_entropy_forward(batch, classes, logits.data(), labels.data(), p.data()),
      softmax_cross_entropy_forward_reference(batch, classes, logits.data(), labels.data(),
                                              p_ref.data()),
      1e-6);
  kernels.softmax_cross_entropy_backward(batch, classes, p.data(), labels.data(), d.data());
  softmax_cross_entropy_backward_reference(batch, classes, p_ref.data(), labels.data(),
                                           d_ref.data());
  expect_close(d, d_ref, "logit gradient");
}

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
  Tensor images(Shape{2, 1, 6, 6}, DataType::f32), labels(Shape{2}, DataType::i64);
  const auto pixels = noise(images.count(), 5);
  std::copy(pixels.begin(), pixels.end(), images.as<float>());
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

TEST(Sequential, BadShapesAndNamesAreRefused) {
  auto model = small_net(1);
  EXPECT_THROW(model.add("fc", relu()), Error);
  EXPECT_THROW(model.forward(Tensor(Shape{2, 3}, DataType::f32)), Error);
  EXPECT_THROW(CrossEntropy(Tensor(Shape{2, 4}, DataType::f32), Tensor(Shape{3}, DataType::i64)),
               Error);
  Tensor labels(Shape{2}, DataType::i64);
  labels.as<int64_t>()[1] = 4;
  EXPECT_THROW(CrossEntropy(Tensor(Shape{2, 4}, DataType::f32), labels), Error);
}

}  // namespace
}  // namespace tutti::nn
