// Embeddings, attention, dropout, residuals and the layers that they are made of.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "tests/nn/layer_check.h"
#include "tests/support/expect_error.h"
#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/layers/loss.h"
#include "tutti/adapters/nn/sequential.h"

namespace tutti {
namespace {

using test::expect_close;
using test::expect_is_gradient;
using test::expect_refused;
using test::noise_tensor;
using test::Values;
using test::values_of;

Tensor indices_of(const Shape& shape, const std::vector<int64_t>& indices) {
  const Tensor tensor(shape, DataType::i64);
  std::copy(indices.begin(), indices.end(), tensor.as<int64_t>());
  return tensor;
}

TEST(Attention, EqualsItsReference) {
  const auto kernels = test::layers_under_test();
  for (const auto dtype : test::kLayerTypes)
    for (const bool causal : {true, false})
      for (const auto& [heads, extents] : std::vector<std::pair<int64_t, Shape>>{{1, {1, 1, 3}},
                                                                                 {2, {2, 5, 24}},
                                                                                 {3, {1, 130, 36}},
                                                                                 {1, {2, 64, 6}},
                                                                                 {2, {0, 4, 12}}}) {
        const AttentionOptions options{.heads = heads, .causal = causal};
        const auto s = attention_shape(options, extents);
        const auto x = noise_tensor(extents, 1, dtype),
                   dy = noise_tensor(attention_output(s), 2, dtype);
        const Tensor y(dy.shape(), dtype), dx(extents, dtype),
            log_sums(Shape{s.batch, heads, s.length}, DataType::f32);
        kernels->attention_forward(options, x, y, log_sums);
        expect_close(y, reference::attention_forward(s, values_of(x)), "output");
        if (dtype != DataType::f32) continue;  // backward would use the rounded output
        kernels->attention_backward(options, x, y, log_sums, dy, dx);
        expect_close(dx, reference::attention_backward(s, values_of(x), values_of(dy)),
                     "input gradient");
      }
}

TEST(Attention, GradientsOfTheReferenceAreThoseOfDifferences) {
  for (const bool causal : {true, false}) {
    const auto s = attention_shape({.heads = 2, .causal = causal}, Shape{2, 4, 18});
    const auto x = values_of(noise_tensor(Shape{2, 4, 18}, 1)),
               dy = values_of(noise_tensor(Shape{2, 4, 6}, 2));
    expect_is_gradient(
        reference::attention_backward(s, x, dy), x, dy,
        [&](const Values& v) { return reference::attention_forward(s, v); }, "attention");
  }
}

// Later tokens do not change the output of earlier ones.
TEST(Attention, CausalRowsSeeNoLaterOnes) {
  const auto kernels = test::layers_under_test();
  const auto x = noise_tensor(Shape{1, 9, 12}, 1), changed = x.clone();
  for (int64_t i = 7 * 12; i < 9 * 12; ++i) changed.as<float>()[i] += 5;
  const Tensor y(Shape{1, 9, 4}, DataType::f32), other(y.shape(), DataType::f32),
      log_sums(Shape{1, 2, 9}, DataType::f32);
  kernels->attention_forward({.heads = 2, .causal = true}, x, y, log_sums);
  kernels->attention_forward({.heads = 2, .causal = true}, changed, other, log_sums);
  for (int64_t i = 0; i < 9 * 4; ++i)
    EXPECT_EQ(y.as<float>()[i] == other.as<float>()[i], i < 7 * 4) << i;
}

TEST(Embedding, TakesRowsAndAddsTheirGradients) {
  const auto kernels = test::layers_under_test();
  const auto table = noise_tensor(Shape{5, 3}, 1), dy = noise_tensor(Shape{2, 2, 3}, 2);
  const auto indices = indices_of(Shape{2, 2}, {4, 0, 4, 2});
  const Tensor y(Shape{2, 2, 3}, DataType::f32), d(Shape{5, 3}, DataType::f32);
  kernels->embedding_forward(indices, table, y);
  kernels->embedding_backward(indices, dy, d);
  Values expected(15);
  for (size_t i = 0; i < 4; ++i)
    for (size_t k = 0; k < 3; ++k) {
      const auto row = static_cast<size_t>(indices.as<int64_t>()[i]);
      EXPECT_EQ(values_of(y)[i * 3 + k], values_of(table)[row * 3 + k]);
      expected[row * 3 + k] += values_of(dy)[i * 3 + k];
    }
  expect_close(d, expected, "table gradient");
}

// There are more indices than a GPU block has threads, and most of them are equal to others.
TEST(Embedding, TakesManyEqualIndices) {
  const auto kernels = test::layers_under_test();
  constexpr int64_t kCount = 1000, kRows = 37;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < kCount; ++i) rows.push_back(i * i % kRows);
  const auto dy = noise_tensor(Shape{kCount, 5}, 2);
  const Tensor d(Shape{kRows, 5}, DataType::f32);
  kernels->embedding_backward(indices_of(Shape{kCount}, rows), dy, d);
  Values expected(kRows * 5);
  for (int64_t i = 0; i < kCount; ++i)
    for (int64_t k = 0; k < 5; ++k)
      expected[static_cast<size_t>(rows[static_cast<size_t>(i)] * 5 + k)] +=
          values_of(dy)[static_cast<size_t>(i * 5 + k)];
  expect_close(d, expected, "table gradient");
}

TEST(Embedding, WhatDoesNotFitIsRefusedByName) {
  const auto kernels = test::layers_under_test();
  const auto table = noise_tensor(Shape{5, 3}, 1);
  const Tensor y(Shape{2, 3}, DataType::f32);
  for (const int64_t index : {int64_t{5}, int64_t{-1}})
    expect_refused("index 1 of an embedding is " + std::to_string(index) + "; expected 0 to 4",
                   [&] {
                     kernels->embedding_forward(indices_of(Shape{2}, {0, index}), table, y);
                   });
  expect_refused(
      "embedding got indices f32[2] and a table [5,3]; expected i64[...] and [rows, "
      "features]",
      [&] { kernels->embedding_forward(noise_tensor(Shape{2}, 1), table, y); });
  nn::Sequential model(1);
  model.add("tokens", nn::embedding(5, 3, {.positions = 4}));
  expect_refused("layer tokens: embedding(5, 3) got i64[1,5], expected i64[batch, length up to 4]",
                 [&] {
                   model.forward(indices_of(Shape{1, 5}, {0, 0, 0, 0, 0}));
                 });
  expect_refused("attention of 2 heads cannot take [1,4,7]", [&] {
    kernels->attention_forward({.heads = 2}, noise_tensor(Shape{1, 4, 7}, 1), y, y);
  });
  expect_refused("attention cannot have 0 heads", [] { nn::attention({.heads = 0}); });
  expect_refused("tied_linear shares the table of an embedding, not of relu",
                 [] { nn::tied_linear(*nn::relu()); });
  expect_refused("dropout(1): its probability must be 0 to below 1", [] { nn::dropout(1); });
  expect_refused("dropout's probability is 1.5; expected 0 to below 1", [&] {
    const auto x = noise_tensor(Shape{2}, 1);
    kernels->dropout({}, 0, 1.5, x, x);
  });
  nn::Sequential unequal(1);
  unequal.add("block", nn::residual(nn::linear(3, 2)));
  expect_refused(
      "layer block: the body put out [1,2], its shortcut [1,3]; give the shortcut layers "
      "that make them equal",
      [&] {
        unequal.forward(noise_tensor(Shape{1, 3}, 1));
      });
}

TEST(Random, IsPhiloxOfSeedPurposeStepAndElement) {
  // The known answers of Random123 for Philox4x32-10, with counter and key of all zeros and of all
  // ones.
  EXPECT_EQ(random_block({}, 0),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(random_block({~uint64_t{0}, ~uint32_t{0}, ~uint32_t{0}}, ~uint64_t{0}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  const RandomKey key{7, random_purpose("a"), 3};
  for (const RandomKey& other : {RandomKey{8, key.purpose, 3}, RandomKey{7, key.purpose, 4},
                                 RandomKey{7, random_purpose("b"), 3}})
    EXPECT_NE(random_block(key, 5), random_block(other, 5));
}

TEST(Random, ElementsDoNotDependOnTheirNeighbours) {
  const RandomKey key{7, 1, 2};
  for (const auto fill : {fill_random_units, fill_random_normals}) {
    std::vector<float> whole(1001), part(17);
    fill(key, 5, whole);
    for (const size_t first : {0u, 1u, 2u, 3u, 500u}) {
      fill(key, 5 + first, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<long>(first)));
    }
  }
}

TEST(Random, HasTheMomentsItShould) {
  std::vector<float> units(100000), normals(100000);
  fill_random_units({1, 2, 3}, 0, units);
  fill_random_normals({1, 2, 3}, 0, normals);
  const auto moment = [](const std::vector<float>& values, int power) {
    double sum = 0;
    for (const double value : values) sum += std::pow(value, power);
    return sum / static_cast<double>(values.size());
  };
  EXPECT_NEAR(moment(units, 1), 0.5, 0.005);
  EXPECT_NEAR(moment(units, 2), 1.0 / 3, 0.005);
  EXPECT_NEAR(moment(normals, 1), 0, 0.02);
  EXPECT_NEAR(moment(normals, 2), 1, 0.03);
  EXPECT_NEAR(moment(normals, 4), 3, 0.15);
  for (const float unit : units) ASSERT_TRUE(unit >= 0 && unit < 1);
}

TEST(Random, OrdersArePermutationsAndDiffer) {
  for (const int64_t count : {0, 1, 2, 1000}) {
    const auto order = random_order({1, 2, 3}, count);
    EXPECT_EQ(order.size(), static_cast<size_t>(count));
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), order.size());
  }
  EXPECT_EQ(random_order({1, 2, 3}, 100), random_order({1, 2, 3}, 100));
  EXPECT_NE(random_order({1, 2, 3}, 100), random_order({1, 2, 4}, 100));
}

// The parts of 1, 2 and 4 ranks together form the same mask.
TEST(Dropout, MasksAreEqualOnAnyNumberOfRanks) {
  const auto x = noise_tensor(Shape{8, 5, 3}, 1);
  const auto masked = [&](int64_t ranks, uint32_t step) {
    Values joined;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      nn::Sequential model(9);
      model.add("drop", nn::dropout(0.4));
      const int64_t rows = 8 / ranks;
      model.set_step(step, rank * rows);
      const auto all = values_of(x);
      const auto part = test::tensor_of(
          Shape{rows, 5, 3},
          Values(all.begin() + rank * rows * 15, all.begin() + (rank + 1) * rows * 15));
      nn::Context context;
      const auto y = values_of(model.forward(part, context));
      const auto dx = values_of(model.backward(context, part, {}));
      EXPECT_EQ(dx, y);  // backward uses the same mask
      joined.insert(joined.end(), y.begin(), y.end());
    }
    return joined;
  };
  const auto one = masked(1, 3);
  EXPECT_EQ(masked(2, 3), one);
  EXPECT_EQ(masked(4, 3), one);
  EXPECT_NE(masked(1, 4), one);
  int dropped = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    dropped += one[i] == 0;
    if (one[i] != 0) {
      EXPECT_NEAR(one[i], values_of(x)[i] / 0.6, 1e-5);
    }
  }
  EXPECT_NEAR(dropped, 0.4 * 120, 20);
  nn::Sequential resting(9);
  resting.add("drop", nn::dropout(0.4));
  resting.set_training(false);
  EXPECT_EQ(values_of(resting.forward(x)), values_of(x));
}

TEST(Residual, AddsItsShortcutForwardAndBackward) {
  nn::Sequential plain(1), with(1);
  plain.add("block", nn::linear(3, 3));
  with.add("block", nn::residual(nn::linear(3, 3)));
  const auto x = noise_tensor(Shape{2, 3}, 1), dy = noise_tensor(Shape{2, 3}, 2);
  nn::Context a, b;
  const auto y = values_of(plain.forward(x, a)), sum = values_of(with.forward(x, b));
  for (size_t i = 0; i < y.size(); ++i) EXPECT_FLOAT_EQ(sum[i], y[i] + values_of(x)[i]);
  const auto d = values_of(plain.backward(a, dy, {})), ds = values_of(with.backward(b, dy, {}));
  for (size_t i = 0; i < d.size(); ++i) EXPECT_FLOAT_EQ(ds[i], d[i] + values_of(dy)[i]);
  EXPECT_EQ(with.parameters()[0].name, "block.weight");
}

// A small transformer: every gradient is compared with finite differences of the loss. Gradients of
// the weights may also be computed later.
TEST(Transformer, GradientsEqualDifferences) {
  nn::Sequential model(4);
  auto tokens = nn::embedding(11, 8, {.positions = 6, .deviation = 1});
  auto head = nn::tied_linear(*tokens);
  auto attend = std::make_unique<nn::Chain>();
  attend->add("norm", nn::layer_norm(8))
      .add("project", nn::linear(8, 24))
      .add("attention", nn::attention({.heads = 2}))
      .add("out", nn::linear(8, 8));
  auto think = std::make_unique<nn::Chain>();
  think->add("norm", nn::layer_norm(8)).add("up", nn::linear(8, 12)).add("gelu", nn::gelu());
  think->add("down", nn::linear(12, 8)).add("drop", nn::dropout(0.25));
  model.add("tokens", std::move(tokens))
      .add("attend", nn::residual(std::move(attend)))
      .add("think", nn::residual(std::move(think)))
      .add("norm", nn::layer_norm(8))
      .add("head", std::move(head));
  const auto text = indices_of(Shape{2, 5}, {1, 2, 3, 4, 5, 10, 0, 7, 1, 1});
  const auto next = indices_of(Shape{2, 5}, {2, 3, 4, 5, 6, 0, 7, 1, 1, 9});
  const auto loss = [&] { return nn::CrossEntropy(model.forward(text), next).value(); };
  model.zero_grad();
  model.backward(nn::CrossEntropy(model.forward(text), next));
  std::set<std::string> names;
  for (const auto& parameter : model.parameters()) {
    EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
    for (int64_t i = 0; i < parameter.value.count(); i += 3) {
      float& value = parameter.value.as<float>()[i];
      const float kept = value;
      constexpr float kStep = 1e-2f;
      value = kept + kStep;
      const double up = loss();
      value = kept - kStep;
      const double down = loss();
      value = kept;
      EXPECT_NEAR(parameter.gradient.as<float>()[i], (up - down) / (2 * kStep), 3e-3)
          << parameter.name << " " << i;
    }
  }
  EXPECT_TRUE(names.contains("attend.project.weight"));
  std::vector<Values> once;
  for (const auto& parameter : model.parameters()) once.push_back(values_of(parameter.gradient));
  model.zero_grad();
  nn::Context context;
  const nn::CrossEntropy again(model.forward(text, context), next);
  const auto gradient = again.gradient(*make_layer_kernels());
  model.backward(context, gradient, {.input = true, .weights = false});
  model.backward(context, gradient, {.input = false, .weights = true});
  for (size_t i = 0; i < once.size(); ++i)
    EXPECT_EQ(values_of(model.parameters()[i].gradient), once[i]) << model.parameters()[i].name;
}

TEST(Losses, EqualTheirFormulasAndDifferences) {
  const auto kernels = test::layers_under_test();
  const auto logits = noise_tensor(Shape{3, 4}, 1);
  const auto labels = indices_of(Shape{3}, {3, 0, 2});
  nn::Sequential model(1);
  model.add("log", nn::log_softmax());
  const nn::CrossEntropy direct(logits, labels);
  nn::Context context;
  const nn::NegativeLogLikelihood likelihood(model.forward(logits, context), labels);
  EXPECT_NEAR(likelihood.value(), direct.value(), 1e-6);
  EXPECT_EQ(likelihood.count(), 3);
  expect_close(model.backward(context, likelihood.gradient(*kernels), {}),
               values_of(direct.gradient(*kernels)), "gradient through log softmax");

  const auto output = noise_tensor(Shape{2, 3}, 2), target = noise_tensor(Shape{2, 3}, 3);
  const nn::MeanSquaredError squared(output, target);
  double sum = 0;
  Values gradient(6);
  for (size_t i = 0; i < 6; ++i) {
    const double difference = values_of(output)[i] - values_of(target)[i];
    sum += difference * difference;
    gradient[i] = 2 * difference / 6;
  }
  EXPECT_NEAR(squared.value(), sum / 6, 1e-6);
  expect_close(squared.gradient(*kernels), gradient, "gradient");
  expect_refused("squared error: the target has shape [3]; expected [2,3]",
                 [&] { nn::MeanSquaredError(output, noise_tensor(Shape{3}, 1)); });
  expect_refused(
      "squared error cannot take []; expected [batch, ...] with at least one element a "
      "row",
      [&] { nn::MeanSquaredError(noise_tensor(Shape{}, 1), noise_tensor(Shape{}, 1)); });
  expect_refused("negative log likelihood got logits f32[3,4] and labels i64[2]", [&] {
    nn::NegativeLogLikelihood(logits, indices_of(Shape{2}, {0, 0}));
  });
  expect_refused("log softmax cannot take [2,0]; expected [..., classes] with at least one class",
                 [&] {
                   const auto none = noise_tensor(Shape{2, 0}, 1);
                   kernels->log_softmax_forward(none, none);
                 });
}

// Losses are sums, so uneven parts of a batch, also empty ones, add up to the loss of the whole.
TEST(Losses, PartsAddUpToTheJoinedBatch) {
  const auto kernels = test::layers_under_test();
  const auto logits = values_of(noise_tensor(Shape{5, 3}, 1));
  const std::vector<int64_t> labels{0, 2, 1, 1, 0};
  const auto part = [&](int64_t first, int64_t count) {
    return nn::CrossEntropy(
        test::tensor_of(Shape{count, 3},
                        Values(logits.begin() + first * 3, logits.begin() + (first + count) * 3)),
        indices_of(Shape{count}, {labels.begin() + first, labels.begin() + first + count}));
  };
  const auto whole = part(0, 5), first = part(0, 1), second = part(1, 4), none = part(5, 0);
  EXPECT_NEAR(first.sum() + second.sum() + none.sum(), whole.sum(), 1e-6);
  EXPECT_EQ(none.value(), 0);
  auto gradient = values_of(first.gradient(*kernels, 5));
  const auto rest = values_of(second.gradient(*kernels, 5));
  gradient.insert(gradient.end(), rest.begin(), rest.end());
  EXPECT_EQ(gradient, values_of(whole.gradient(*kernels)));
  EXPECT_EQ(none.gradient(*kernels).count(), 0);
}

// The second row's largest value is not at its label.
TEST(Losses, WhatIsRightIsCountedInEveryType) {
  const auto labels = indices_of(Shape{3}, {0, 2, 3});
  for (const auto dtype : test::kLayerTypes) {
    const auto logits =
        test::tensor_of(Shape{3, 4}, {9, 1, 2, 3, 0, 5, -1, 4, -4, -3, -2, -1}, dtype);
    EXPECT_EQ(nn::count_correct(logits, labels), 2) << to_string(dtype);
  }
}

TEST(Pooling, GlobalAveragesAreThoseOfEachChannel) {
  nn::Sequential model(1);
  model.add("pool", nn::global_average_pool());
  const auto x = noise_tensor(Shape{2, 3, 4, 5}, 1), dy = noise_tensor(Shape{2, 3}, 2);
  nn::Context context;
  const auto y = values_of(model.forward(x, context));
  const auto dx = values_of(model.backward(context, dy, {}));
  for (size_t c = 0; c < 6; ++c) {
    double sum = 0;
    for (size_t i = 0; i < 20; ++i) {
      sum += values_of(x)[c * 20 + i];
      EXPECT_NEAR(dx[c * 20 + i], values_of(dy)[c] / 20, 1e-6);
    }
    EXPECT_NEAR(y[c], sum / 20, 1e-6);
  }
}

// Activations have 16 bits, arithmetic is in f32. Results stay near the f32 model's, and gradients
// of weights are f32.
TEST(SixteenBits, ModelsComeNearTheirF32Twin) {
  for (const auto dtype : {DataType::bf16, DataType::f16}) {
    const auto make = [&](bool narrow) {
      auto model = std::make_unique<nn::Sequential>(3);
      if (narrow) model->add("narrow", nn::cast_to(dtype));
      model->add("fc1", nn::linear(6, 16)).add("gelu", nn::gelu()).add("norm", nn::layer_norm(16));
      model->add("fc2", nn::linear(16, 4));
      return model;
    };
    const auto x = noise_tensor(Shape{5, 6}, 1);
    const auto labels = indices_of(Shape{5}, {0, 1, 2, 3, 0});
    const auto narrow = make(true), wide = make(false);
    const auto logits = narrow->forward(x);
    EXPECT_EQ(logits.dtype(), dtype);
    const nn::CrossEntropy loss(logits, labels), expected(wide->forward(x), labels);
    EXPECT_NEAR(loss.value(), expected.value(), 0.02 * expected.value());
    narrow->backward(loss);
    wide->backward(expected);
    double difference = 0, norm = 0;
    for (size_t p = 0; p < wide->parameters().size(); ++p) {
      const auto a = values_of(narrow->parameters()[p].gradient),
                 b = values_of(wide->parameters()[p].gradient);
      for (size_t i = 0; i < a.size(); ++i) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
      }
    }
    EXPECT_LT(std::sqrt(difference / norm), dtype == DataType::bf16 ? 0.02 : 0.003);
  }
}

}  // namespace
}  // namespace tutti
