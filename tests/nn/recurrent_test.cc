// Recurrent layers and matrix factorisation are compared with plain loops in f64, and their
// gradients with finite differences of these loops.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "tests/nn/layer_check.h"
#include "tests/support/expect_error.h"
#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/layers/loss.h"
#include "tutti/adapters/nn/optimizers.h"
#include "tutti/adapters/nn/sequential.h"

namespace tutti {
namespace {

using test::expect_refused;
using test::noise_tensor;
using test::Values;
using test::values_of;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Returns all hidden values by the formulas; `parameters` has the layer's order.
Values recurrent_reference(Recurrence recurrence, size_t batch, size_t length, size_t inputs,
                           size_t width, const Values& x, const std::vector<Values>& parameters) {
  const auto &wi = parameters[0], &bi = parameters[1], &wh = parameters[2], &bh = parameters[3];
  const auto gates = static_cast<size_t>(gate_count(recurrence)) * width;
  Values output(batch * length * width);
  for (size_t n = 0; n < batch; ++n) {
    Values hidden(width), cell(width);
    for (size_t t = 0; t < length; ++t) {
      Values in = bi, own = bh;
      for (size_t g = 0; g < gates; ++g) {
        for (size_t i = 0; i < inputs; ++i)
          in[g] += wi[g * inputs + i] * x[(n * length + t) * inputs + i];
        for (size_t i = 0; i < width; ++i) own[g] += wh[g * width + i] * hidden[i];
      }
      for (size_t i = 0; i < width; ++i) {
        const auto sum = [&](size_t gate) { return in[gate * width + i] + own[gate * width + i]; };
        if (recurrence == Recurrence::lstm) {
          cell[i] = sigmoid(sum(1)) * cell[i] + sigmoid(sum(0)) * std::tanh(sum(2));
          hidden[i] = sigmoid(sum(3)) * std::tanh(cell[i]);
        } else {
          const double update = sigmoid(sum(1));
          hidden[i] =
              (1 - update) * std::tanh(in[2 * width + i] + sigmoid(sum(0)) * own[2 * width + i]) +
              update * hidden[i];
        }
        output[(n * length + t) * width + i] = hidden[i];
      }
    }
  }
  return output;
}

// Finite differences of sum(dy * forward()) by every value of `varied`.
Values differences(Values& varied, const Values& dy, const std::function<Values()>& forward) {
  const auto value = [&] {
    const auto y = forward();
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  constexpr double kStep = 1e-5;
  Values gradient(varied.size());
  for (size_t i = 0; i < varied.size(); ++i) {
    const double kept = varied[i];
    varied[i] = kept + kStep;
    const double up = value();
    varied[i] = kept - kStep;
    gradient[i] = (up - value()) / (2 * kStep);
    varied[i] = kept;
  }
  return gradient;
}

TEST(Recurrent, EqualsPlainLoopsAndTheirDifferences) {
  for (const auto recurrence : {Recurrence::lstm, Recurrence::gru})
    for (const auto& [batch, length, inputs, width] :
         std::vector<std::array<size_t, 4>>{{1, 1, 1, 1}, {3, 5, 4, 3}, {2, 7, 2, 5}}) {
      nn::Sequential model(2);
      const auto in = static_cast<int64_t>(inputs), out = static_cast<int64_t>(width);
      model.add("rnn", recurrence == Recurrence::lstm ? nn::lstm(in, out) : nn::gru(in, out));
      const auto n = static_cast<int64_t>(batch), steps = static_cast<int64_t>(length);
      const auto x = noise_tensor(Shape{n, steps, in}, 1),
                 dy = noise_tensor(Shape{n, steps, out}, 2);
      std::vector<Values> parameters;
      for (const auto& parameter : model.parameters())
        parameters.push_back(values_of(parameter.value));
      auto xs = values_of(x);
      const auto forward = [&, batch = batch, length = length, inputs = inputs, width = width] {
        return recurrent_reference(recurrence, batch, length, inputs, width, xs, parameters);
      };
      nn::Context context;
      test::expect_close(model.forward(x, context), forward(), "output");
      const auto dx = model.backward(context, dy, {});
      test::expect_close(dx, differences(xs, values_of(dy), forward), "input gradient");
      for (size_t p = 0; p < parameters.size(); ++p) {
        const auto expected = differences(parameters[p], values_of(dy), forward);
        test::expect_close(model.parameters()[p].gradient, expected, model.parameters()[p].name);
      }
      // Computing the input's gradient first and the weights' later must give the same values.
      std::vector<Values> once;
      for (const auto& parameter : model.parameters())
        once.push_back(values_of(parameter.gradient));
      model.zero_grad();
      model.forward(x, context);
      EXPECT_EQ(values_of(model.backward(context, dy, {.input = true, .weights = false})),
                values_of(dx));
      model.backward(context, dy, {.input = false, .weights = true});
      for (size_t p = 0; p < once.size(); ++p)
        EXPECT_EQ(values_of(model.parameters()[p].gradient), once[p]);
    }
}

TEST(Recurrent, SixteenBitsAndEmptyBatches) {
  for (const auto dtype : {DataType::bf16, DataType::f16}) {
    nn::Sequential model(2);
    model.add("rnn", nn::gru(4, 3));
    const auto x = noise_tensor(Shape{2, 5, 4}, 1, dtype);
    std::vector<Values> parameters;
    for (const auto& parameter : model.parameters())
      parameters.push_back(values_of(parameter.value));
    const auto y = model.forward(x);
    EXPECT_EQ(y.dtype(), dtype);
    test::expect_close(
        y, recurrent_reference(Recurrence::gru, 2, 5, 4, 3, values_of(x), parameters), "output");
    nn::Context context;
    const auto none = model.forward(Tensor(Shape{0, 5, 4}, dtype), context);
    EXPECT_EQ(none.shape(), (Shape{0, 5, 3}));
    EXPECT_EQ(model.backward(context, none, {}).shape(), (Shape{0, 5, 4}));
  }
}

TEST(Recurrent, WhatDoesNotFitIsRefusedByName) {
  nn::Sequential model(2);
  model.add("rnn", nn::lstm(4, 3));
  expect_refused(
      "layer rnn: lstm(4, 3) got f32[2,5], expected f32, bf16 or f16 [batch, length, inputs]", [&] {
        model.forward(noise_tensor(Shape{2, 5}, 1));
      });
  const auto any = noise_tensor(Shape{1}, 1);
  expect_refused(
      "a recurrent layer of 3 gates cannot take [2,5,7]; expected [batch, length, gates "
      "* width], each but the batch at least 1",
      [&] {
        make_layer_kernels()->recurrent_forward(Recurrence::gru, noise_tensor(Shape{2, 5, 7}, 1),
                                                any, any, any, any);
      });
}

Tensor pairs_of(const std::vector<int64_t>& indices) {
  const Tensor tensor(Shape{static_cast<int64_t>(indices.size() / 2), 2}, DataType::i64);
  std::copy(indices.begin(), indices.end(), tensor.as<int64_t>());
  return tensor;
}

TEST(MatrixFactorization, EqualsItsFormulaAndDifferences) {
  nn::Sequential model(3);
  model.add("ratings", nn::matrix_factorization(4, 3, 2));
  const std::vector<int64_t> pairs{0, 2, 3, 1, 3, 2, 0, 2};
  std::vector<Values> parameters;
  for (const auto& parameter : model.parameters()) parameters.push_back(values_of(parameter.value));
  const auto forward = [&] {
    Values y;
    for (size_t n = 0; n < pairs.size(); n += 2) {
      const auto row = static_cast<size_t>(pairs[n]), column = static_cast<size_t>(pairs[n + 1]);
      y.push_back(parameters[0][row * 2] * parameters[1][column * 2] +
                  parameters[0][row * 2 + 1] * parameters[1][column * 2 + 1] + parameters[2][row] +
                  parameters[3][column]);
    }
    return y;
  };
  const auto dy = noise_tensor(Shape{4, 1}, 4);
  nn::Context context;
  test::expect_close(model.forward(pairs_of(pairs), context), forward(), "output");
  model.backward(context, dy, {.input = false, .weights = true});
  for (size_t p = 0; p < parameters.size(); ++p) {
    const auto expected = differences(parameters[p], values_of(dy), forward);
    test::expect_close(model.parameters()[p].gradient, expected, model.parameters()[p].name);
  }
  expect_refused(
      "layer ratings: matrix_factorization(4, 3, 2) got f32[4,1], expected i64[batch, 2]: a row "
      "and a column",
      [&] { model.forward(dy); });
  expect_refused("index 0 of an embedding is 4; expected 0 to 3", [&] {
    model.forward(pairs_of({4, 0}));
  });
}

// Ratings with a matrix of rank 2 are recovered from two thirds of them.
TEST(MatrixFactorization, FindsWhatItHasNotSeen) {
  const auto rows = values_of(noise_tensor(Shape{24, 2}, 1)),
             columns = values_of(noise_tensor(Shape{15, 2}, 2));
  std::vector<int64_t> seen, unseen;
  Values seen_ratings, unseen_ratings;
  for (size_t r = 0; r < 24; ++r)
    for (size_t c = 0; c < 15; ++c) {
      const bool is_seen = (r + c) % 3 != 0;
      auto& pairs = is_seen ? seen : unseen;
      pairs.push_back(static_cast<int64_t>(r));
      pairs.push_back(static_cast<int64_t>(c));
      (is_seen ? seen_ratings : unseen_ratings)
          .push_back(rows[2 * r] * columns[2 * c] + rows[2 * r + 1] * columns[2 * c + 1]);
    }
  const auto rating_tensor = [](const Values& ratings) {
    return test::tensor_of(Shape{static_cast<int64_t>(ratings.size()), 1}, ratings);
  };
  nn::Sequential model(3);
  model.add("ratings", nn::matrix_factorization(24, 15, 2));
  nn::Adam adam(model.parameters(), {.learning_rate = 0.03});
  const auto error = [&] {
    return nn::MeanSquaredError(model.forward(pairs_of(unseen)), rating_tensor(unseen_ratings))
        .value();
  };
  const double before = error();
  for (int step = 0; step < 600; ++step) {
    model.zero_grad();
    model.backward(
        nn::MeanSquaredError(model.forward(pairs_of(seen)), rating_tensor(seen_ratings)));
    adam.step();
  }
  EXPECT_LT(error(), 0.05 * before);
}

}  // namespace
}  // namespace tutti
