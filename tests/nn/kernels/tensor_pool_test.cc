// Passes reuse the memory of earlier ones, whatever values it holds.

#include "tutti/adapters/nn/kernels/cpu/tensor_pool.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/nn/layer_check.h"
#include "tutti/nn.h"

namespace tutti {
namespace {

constexpr int64_t kCount = 100'000;

TEST(TensorPool, GivesTheSameMemoryAgain) {
  const auto pool = std::make_shared<TensorPool>();
  const std::byte* first = nullptr;
  {
    const auto tensor = pool->make(Shape{kCount}, DataType::f32);
    first = tensor.data();
    EXPECT_EQ(tensor.count(), kCount);
    const auto other = pool->make(Shape{kCount}, DataType::f32);
    EXPECT_NE(other.data(), first);
    EXPECT_EQ(pool->unused_bytes(), 0U);
  }
  const size_t both = pool->unused_bytes();
  EXPECT_GE(both, 8U * kCount);
  // A slightly smaller tensor reuses a block. A much smaller one does not, because it would waste
  // the rest.
  const auto less = pool->make(Shape{kCount - 3000}, DataType::f32);
  EXPECT_EQ(pool->unused_bytes(), both / 2);
  const auto small = pool->make(Shape{kCount / 4}, DataType::f32);
  EXPECT_EQ(pool->unused_bytes(), both / 2);
}

TEST(TensorPool, KeepsNoMoreThanWasUsedAtOneTime) {
  const auto pool = std::make_shared<TensorPool>();
  for (int64_t i = 1; i <= 50; ++i) pool->make(Shape{i * kCount}, DataType::f32);
  EXPECT_LE(pool->unused_bytes(), 50U * kCount * 4 + 4096);
  EXPECT_GT(pool->unused_bytes(), 0U);
}

TEST(TensorPool, TensorsOutliveIt) {
  auto pool = std::make_shared<TensorPool>();
  auto tensor = pool->make(Shape{kCount}, DataType::f32);
  pool.reset();
  std::fill_n(tensor.as<float>(), kCount, 1.0F);
  tensor = {};
}

// After a pass that left NaN everywhere, a pass gives the results of a fresh model: nothing reads
// memory before it is written.
TEST(TensorPool, WhatLiesInItIsNotRead) {
  using namespace nn;
  for (const auto dtype : test::kLayerTypes) {
    const auto make = [&] {
      auto model = std::make_unique<Sequential>(3);
      auto body = std::make_unique<Chain>();
      body->add("conv", conv2d(8, 8, 3, {.padding = 1}))
          .add("norm", batch_norm(8))
          .add("t", tanh());
      model->add("cast", cast_to(dtype))
          .add("conv1", conv2d(2, 8, 3, {.padding = 1}))
          .add("relu", relu())
          .add("sum", residual(std::move(body)))
          .add("max", max_pool2d(2))
          .add("average", average_pool2d(2))
          .add("dropout", dropout(0.25))
          .add("flatten", flatten())
          .add("fc", linear(8 * 8 * 8, 384))
          .add("norm2", layer_norm(384))
          .add("gelu", gelu())
          .add("fc2", linear(384, 500))
          .add("last", log_softmax());
      return model;
    };
    const Shape shape{32, 2, 32, 32};
    const auto pass = [&](Sequential& model, const Tensor& input) {
      model.zero_grad();
      const auto output = model.forward(input);
      const Tensor labels(Shape{32}, DataType::i64);
      model.backward(CrossEntropy(output, labels));
      auto values = test::values_of(output);
      for (const auto& parameter : model.parameters()) {
        const auto more = test::values_of(parameter.gradient);
        values.insert(values.end(), more.begin(), more.end());
      }
      return values;
    };
    const auto input = test::noise_tensor(shape, 1);
    const Tensor spoilt(shape, DataType::f32);
    for (float& value : spoilt.span<float>()) value = std::numeric_limits<float>::quiet_NaN();
    const auto expected = pass(*make(), input);
    const auto model = make();
    pass(*model, spoilt);
    EXPECT_EQ(pass(*model, input), expected) << to_string(dtype);
  }
}

// The same test for a model from tokens to logits and back.
TEST(TensorPool, WhatLiesInItIsNotReadBySequences) {
  using namespace nn;
  const auto make = [] {
    auto model = std::make_unique<Sequential>(3);
    auto tokens = embedding(50, 64, {.positions = 32});
    auto head = tied_linear(*tokens);
    model->add("tokens", std::move(tokens))
        .add("qkv", linear(64, 192))
        .add("attention", attention({.heads = 4}))
        .add("lstm", lstm(64, 64))
        .add("gru", gru(64, 64))
        .add("head", std::move(head));
    return model;
  };
  const Tensor tokens(Shape{16, 32}, DataType::i64), labels(Shape{16, 32}, DataType::i64);
  for (int64_t i = 0; i < tokens.count(); ++i) tokens.as<int64_t>()[i] = i * 7 % 50;
  const auto pass = [&](Sequential& model) {
    model.zero_grad();
    const auto output = model.forward(tokens);
    model.backward(CrossEntropy(output, labels));
    test::Values values;
    for (const auto& parameter : model.parameters()) {
      const auto more = test::values_of(parameter.gradient);
      values.insert(values.end(), more.begin(), more.end());
    }
    return values;
  };
  const auto expected = pass(*make());
  const auto model = make();
  const auto weights = model->parameters()[0].value;
  const auto kept = weights.clone();
  for (float& value : weights.span<float>()) value = std::numeric_limits<float>::quiet_NaN();
  pass(*model);
  std::copy_n(kept.as<float>(), kept.count(), weights.as<float>());
  EXPECT_EQ(pass(*model), expected);
}

}  // namespace
}  // namespace tutti
