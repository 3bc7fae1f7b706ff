// Every layer in bf16 and f16 beside its f32 twin. The inputs are the same; outputs differ by the
// rounding of stored values. Covers batches of none, one and more.

#include <gtest/gtest.h>

#include <functional>

#include "tests/nn/layer_check.h"
#include "tests/support/ranks.h"
#include "tutti/nn.h"

namespace tutti {
namespace {

using test::noise_tensor;
using test::Values;
using test::values_of;

struct LayerCase {
  const char* name;
  std::function<std::unique_ptr<nn::Layer>(Communicator&)> make;
  Shape input;  // without the batch dimension
};

std::vector<LayerCase> layer_cases() {
  const auto body = [] {
    auto chain = std::make_unique<nn::Chain>();
    chain->add("fc", nn::linear(6, 6));
    return chain;
  };
  return {
      {"linear", [](auto&) { return nn::linear(7, 5); }, Shape{7}},
      {"linear of rows", [](auto&) { return nn::linear(7, 5, {.bias = false}); }, Shape{3, 7}},
      {"conv2d", [](auto&) { return nn::conv2d(3, 5, 3, {.stride = 2, .padding = 1}); },
       Shape{3, 7, 5}},
      {"wide conv2d", [](auto&) { return nn::conv2d(16, 16, 3, {.padding = 1}); }, Shape{16, 5, 3}},
      {"conv3d", [](auto&) { return nn::conv3d(2, 3, 2); }, Shape{2, 3, 4, 5}},
      {"max pool", [](auto&) { return nn::max_pool2d(3, 2, 1); }, Shape{2, 7, 5}},
      {"average pool", [](auto&) { return nn::average_pool2d(2); }, Shape{2, 7, 5}},
      {"global pool", [](auto&) { return nn::global_average_pool(); }, Shape{3, 5, 3}},
      {"relu", [](auto&) { return nn::relu(); }, Shape{13}},
      {"tanh", [](auto&) { return nn::tanh(); }, Shape{13}},
      {"gelu", [](auto&) { return nn::gelu(); }, Shape{13}},
      {"log softmax", [](auto&) { return nn::log_softmax(); }, Shape{3, 5}},
      {"dropout", [](auto&) { return nn::dropout(0.3); }, Shape{3, 7}},
      {"batch norm", [](auto&) { return nn::batch_norm(3); }, Shape{3, 5, 7}},
      {"sync batch norm", [](auto& comm) { return nn::sync_batch_norm(comm, 3); }, Shape{3, 5, 7}},
      {"layer norm", [](auto&) { return nn::layer_norm(9); }, Shape{5, 9}},
      {"attention", [](auto&) { return nn::attention({.heads = 2}); }, Shape{7, 18}},
      {"full attention", [](auto&) { return nn::attention({.heads = 3, .causal = false}); },
       Shape{5, 9}},
      {"lstm", [](auto&) { return nn::lstm(3, 5); }, Shape{4, 3}},
      {"gru", [](auto&) { return nn::gru(3, 5); }, Shape{4, 3}},
      {"residual", [body](auto&) { return nn::residual(body()); }, Shape{6}},
      {"flatten", [](auto&) { return nn::flatten(); }, Shape{2, 3, 5}},
  };
}

TEST(SixteenBits, EveryLayerIsItsF32TwinRounded) {
  test::run_threads(1, [](Communicator& comm) {
    for (const auto& [name, make, row] : layer_cases())
      for (const auto dtype : {DataType::bf16, DataType::f16})
        for (const int64_t batch : {0, 1, 3}) {
          SCOPED_TRACE(std::string(name) + " in " + std::string(to_string(dtype)) + ", batch of " +
                       std::to_string(batch));
          std::vector<int64_t> extents(row.extents().begin(), row.extents().end());
          extents.insert(extents.begin(), batch);
          const auto narrow_input = noise_tensor(Shape(extents), 1, dtype);
          const auto wide_input = test::tensor_of(Shape(extents), values_of(narrow_input));
          nn::Sequential narrow(5), wide(5);
          narrow.add("layer", make(comm));
          wide.add("layer", make(comm));
          nn::Context narrow_context, wide_context;
          const auto output = narrow.forward(narrow_input, narrow_context);
          const auto expected = wide.forward(wide_input, wide_context);
          EXPECT_EQ(output.dtype(), dtype);
          EXPECT_EQ(output.shape(), expected.shape());
          test::expect_close(output, values_of(expected), "output");
          const auto dy = noise_tensor(output.shape(), 2, dtype);
          const auto dx = narrow.backward(narrow_context, dy, {});
          const auto wide_dx =
              wide.backward(wide_context, test::tensor_of(output.shape(), values_of(dy)), {});
          EXPECT_EQ(dx.dtype(), dtype);
          // Backward uses values that forward rounded when it stored them; each use adds to the
          // error.
          const double bound = dtype == DataType::bf16 ? 0x1p-6 : 0x1p-9;
          const auto expect_near = [&](const Tensor& tensor, const Tensor& twin, const char* what) {
            const auto got = values_of(tensor), want = values_of(twin);
            ASSERT_EQ(got.size(), want.size()) << what;
            double norm = 0;
            for (const double value : want) norm = std::max(norm, std::abs(value));
            for (size_t i = 0; i < got.size(); ++i)
              ASSERT_NEAR(got[i], want[i], bound * (std::abs(want[i]) + norm)) << what << " " << i;
          };
          expect_near(dx, wide_dx, "input gradient");
          const auto parameters = narrow.parameters(), twins = wide.parameters();
          for (size_t p = 0; p < parameters.size(); ++p) {
            EXPECT_EQ(parameters[p].gradient.dtype(), DataType::f32);
            expect_near(parameters[p].gradient, twins[p].gradient, parameters[p].name.c_str());
          }
        }
  });
}

// Layers whose inputs are indices: their tables are f32, and the layers after them work in 16 bits.
TEST(SixteenBits, WhatFollowsTablesIsRounded) {
  for (const auto dtype : {DataType::bf16, DataType::f16}) {
    const auto make = [&](bool is_narrow) {
      auto model = std::make_unique<nn::Sequential>(5);
      auto tokens = nn::embedding(9, 6, {.positions = 4, .deviation = 1});
      auto head = nn::tied_linear(*tokens);
      model->add("tokens", std::move(tokens));
      if (is_narrow) model->add("narrow", nn::cast_to(dtype));
      model->add("head", std::move(head));
      return model;
    };
    const Tensor indices(Shape{2, 4}, DataType::i64), labels(Shape{2, 4}, DataType::i64);
    for (int64_t i = 0; i < 8; ++i) indices.as<int64_t>()[i] = labels.as<int64_t>()[i] = i * 5 % 9;
    const auto narrow = make(true), wide = make(false);
    const nn::CrossEntropy loss(narrow->forward(indices), labels),
        expected(wide->forward(indices), labels);
    EXPECT_NEAR(loss.value(), expected.value(), 0.02 * expected.value());
    narrow->backward(loss);
    wide->backward(expected);
    const auto got = values_of(narrow->parameters()[0].gradient),
               want = values_of(wide->parameters()[0].gradient);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.03) << i;
  }
}

}  // namespace
}  // namespace tutti
