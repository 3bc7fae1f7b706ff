// Batch norm, sync batch norm and layer norm. The kernels are compared with references, the layers
// over ranks with the joined batch.

#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <vector>

#include "tests/nn/layer_check.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/adapters/nn/sequential.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using test::expect_close;
using test::expect_is_gradient;
using test::noise_tensor;
using test::Values;
using test::values_of;

constexpr double kEpsilon = 1e-5;

TEST(Norms, BatchNormEqualsItsReference) {
  const auto kernels = test::layers_under_test();
  for (const auto dtype : test::kLayerTypes)
    for (const auto& extents :
         std::vector<Shape>{{5, 3}, {1, 2, 3, 3}, {4, 3, 5, 7}, {3, 5, 14, 14}, {20, 2, 32, 32}}) {
      const auto s = channels_shape("batch norm", extents);
      const Shape channels{s.channels};
      const auto x = noise_tensor(extents, 1, dtype), w = noise_tensor(channels, 2),
                 b = noise_tensor(channels, 3), dy = noise_tensor(extents, 4, dtype);
      const Tensor moments(Shape{1 + 2 * s.channels}, DataType::f64), mean(channels, DataType::f32),
          inverse(channels, DataType::f32), running_mean(channels, DataType::f32),
          running_variance(channels, DataType::f32), y(extents, dtype), dx(extents, dtype);
      kernels->batch_norm_moments(x, moments);
      kernels->batch_norm_statistics(moments, kEpsilon, 1, mean, inverse, running_mean,
                                     running_variance);
      kernels->batch_norm_forward(x, mean, inverse, w, b, y);
      expect_close(
          y, reference::batch_norm_forward(s, kEpsilon, values_of(x), values_of(w), values_of(b)),
          "output");
      const auto d =
          reference::batch_norm_backward(s, kEpsilon, values_of(x), values_of(w), values_of(dy));
      kernels->batch_norm_backward_moments(x, mean, inverse, dy, moments);
      kernels->batch_norm_backward_input(x, mean, inverse, w, dy, moments, dx);
      expect_close(dx, d.input, "input gradient");
      const auto sums = values_of(moments);
      const auto count = static_cast<size_t>(s.channels);
      for (size_t c = 0; c < count; ++c) {
        EXPECT_NEAR(sums[1 + c], d.bias[c], 1e-4);
        EXPECT_NEAR(sums[1 + count + c], d.weight[c], 1e-4);
        const auto n = static_cast<double>(s.batch * s.positions);
        const double variance = 1 / (values_of(inverse)[c] * values_of(inverse)[c]) - kEpsilon;
        EXPECT_NEAR(values_of(running_variance)[c], variance * n / (n - 1), 1e-4);
      }
      expect_close(running_mean, values_of(mean), "running mean");
    }
}

TEST(Norms, LayerNormEqualsItsReference) {
  const auto kernels = test::layers_under_test();
  for (const auto dtype : test::kLayerTypes)
    for (const auto& extents : std::vector<Shape>{{1, 2}, {5, 33}, {2, 3, 64}, {0, 8}, {300, 72}}) {
      const int64_t features = extents[extents.rank() - 1];
      const auto x = noise_tensor(extents, 1, dtype), w = noise_tensor(Shape{features}, 2),
                 b = noise_tensor(Shape{features}, 3), dy = noise_tensor(extents, 4, dtype);
      const Tensor y(extents, dtype), dx(extents, dtype), dw(Shape{features}, DataType::f32),
          db(Shape{features}, DataType::f32),
          statistics(Shape{x.count() / features, 2}, DataType::f32);
      kernels->layer_norm_forward(kEpsilon, x, w, b, y, statistics);
      expect_close(y,
                   reference::layer_norm_forward(features, kEpsilon, values_of(x), values_of(w),
                                                 values_of(b)),
                   "output");
      const auto d = reference::layer_norm_backward(features, kEpsilon, values_of(x), values_of(w),
                                                    values_of(dy));
      kernels->layer_norm_backward_input(x, statistics, w, dy, dx);
      kernels->layer_norm_backward_weights(x, statistics, dy, dw, db);
      // With two features the gradient is zero.
      if (features > 2) expect_close(dx, d.input, "input gradient");
      expect_close(dw, d.weight, "weight gradient");
      expect_close(db, d.bias, "bias gradient");
    }
}

TEST(Norms, GradientsOfTheReferencesAreThoseOfDifferences) {
  const ChannelsShape s{3, 2, 4};
  const auto x = values_of(noise_tensor(Shape{24}, 1)), w = values_of(noise_tensor(Shape{2}, 2)),
             b = values_of(noise_tensor(Shape{2}, 3)), dy = values_of(noise_tensor(Shape{24}, 4));
  const auto d = reference::batch_norm_backward(s, kEpsilon, x, w, dy);
  const auto batch = [&](const Values& vx, const Values& vw, const Values& vb) {
    return reference::batch_norm_forward(s, kEpsilon, vx, vw, vb);
  };
  expect_is_gradient(
      d.input, x, dy, [&](const Values& v) { return batch(v, w, b); }, "batch norm input");
  expect_is_gradient(
      d.weight, w, dy, [&](const Values& v) { return batch(x, v, b); }, "batch norm weight");
  expect_is_gradient(
      d.bias, b, dy, [&](const Values& v) { return batch(x, w, v); }, "batch norm bias");
  const auto lw = values_of(noise_tensor(Shape{6}, 5)), lb = values_of(noise_tensor(Shape{6}, 6));
  const auto l = reference::layer_norm_backward(6, kEpsilon, x, lw, dy);
  const auto layer = [&](const Values& vx, const Values& vw, const Values& vb) {
    return reference::layer_norm_forward(6, kEpsilon, vx, vw, vb);
  };
  expect_is_gradient(
      l.input, x, dy, [&](const Values& v) { return layer(v, lw, lb); }, "layer norm input");
  expect_is_gradient(
      l.weight, lw, dy, [&](const Values& v) { return layer(x, v, lb); }, "layer norm weight");
  expect_is_gradient(
      l.bias, lb, dy, [&](const Values& v) { return layer(x, lw, v); }, "layer norm bias");
}

TEST(Norms, WhatDoesNotFitIsRefusedByName) {
  const auto kernels = test::layers_under_test();
  const auto f32 = [](const Shape& shape) { return Tensor(shape, DataType::f32); };
  test::expect_refused(
      "batch norm cannot take [5]; expected [batch, channels, ...] with at least "
      "one channel",
      [&] { kernels->batch_norm_moments(f32({5}), f32({3})); });
  test::expect_refused("batch norm got moments in f32; expected f64", [&] {
    kernels->batch_norm_moments(f32({5, 1}), f32({3}));
  });
  test::expect_refused("batch norm: the moments has shape [4]; expected [3]", [&] {
    kernels->batch_norm_moments(f32({5, 1}), f32({4}));
  });
  test::expect_refused(
      "layer norm cannot take [3,0]; expected [..., features] with at least one "
      "feature",
      [&] {
        kernels->layer_norm_forward(kEpsilon, f32({3, 0}), f32({0}), f32({0}), f32({3, 0}),
                                    f32({3, 2}));
      });
}

// The results of one pass: the output, the gradients of the input and of the weights, and the
// buffers, each concatenated.
struct Passed {
  Values output, input, weights, buffers;
};

Passed pass(nn::Sequential& model, const Tensor& input, const Tensor& gradient) {
  nn::Context context;
  Passed passed;
  passed.output = values_of(model.forward(input, context));
  passed.input = values_of(model.backward(context, gradient, {}));
  const auto append = [](Values& to, const Tensor& tensor) {
    const auto values = values_of(tensor);
    to.insert(to.end(), values.begin(), values.end());
  };
  for (const auto& parameter : model.parameters()) append(passed.weights, parameter.gradient);
  for (const auto& buffer : model.buffers()) append(passed.buffers, buffer.tensor);
  return passed;
}

Tensor rows_of(const Tensor& tensor, int64_t first, int64_t count) {
  const auto all = values_of(tensor);
  const auto row = tensor.shape().row_count();
  return test::tensor_of(tensor.shape().with_rows(count),
                         Values(all.begin() + first * row, all.begin() + (first + count) * row));
}

void expect_near(const Values& a, const Values& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5) << what << " at " << i;
}

// Over parts of any size, also empty ones, the result is the batch norm of the joined batch.
TEST(Norms, SyncBatchNormIsThatOfTheJoinedBatch) {
  for (const auto& parts :
       std::vector<std::vector<int64_t>>{{0, 1, 3, 4}, {3, 0}, {1, 1, 1}, {5}, {2, 6}, {0, 0}}) {
    const int64_t rows = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    const auto x = noise_tensor(Shape{rows, 3, 2, 5}, 1), dy = noise_tensor(x.shape(), 2);
    nn::Sequential joined(1);
    joined.add("norm", nn::batch_norm(3, {.momentum = 0.3}));
    const auto expected = pass(joined, x, dy);
    Values weights(expected.weights.size());
    std::mutex mutex;
    test::run_threads(static_cast<int>(parts.size()), [&](Communicator& comm) {
      const auto rank = static_cast<size_t>(comm.rank());
      const int64_t first = std::accumulate(parts.begin(), parts.begin() + comm.rank(), int64_t{0});
      nn::Sequential model(1);
      model.add("norm", nn::sync_batch_norm(comm, 3, {.momentum = 0.3}));
      const auto passed =
          pass(model, rows_of(x, first, parts[rank]), rows_of(dy, first, parts[rank]));
      const auto part = [&](const Values& all) {
        return Values(all.begin() + first * 30, all.begin() + (first + parts[rank]) * 30);
      };
      expect_near(passed.output, part(expected.output), "output");
      expect_near(passed.input, part(expected.input), "input gradient");
      expect_near(passed.buffers, expected.buffers, "running values");
      const std::lock_guard lock(mutex);
      for (size_t i = 0; i < weights.size(); ++i) weights[i] += passed.weights[i];
    });
    expect_near(weights, expected.weights, "weight gradients");
  }
}

TEST(Norms, EvaluationGoesByRunningValues) {
  nn::Sequential model(1);
  model.add("norm", nn::batch_norm(2, {.momentum = 1}));
  const auto x = noise_tensor(Shape{64, 2}, 1);
  const auto trained = values_of(model.forward(x));
  const auto buffers = model.buffers();
  ASSERT_EQ(buffers.size(), 2u);
  EXPECT_EQ(buffers[0].name, "norm.running_mean");
  const auto mean = values_of(buffers[0].tensor), variance = values_of(buffers[1].tensor);
  model.set_training(false);
  nn::Context context;
  const auto evaluated = values_of(model.forward(x, context));
  for (size_t i = 0; i < trained.size(); ++i)
    EXPECT_NEAR(evaluated[i],
                (values_of(x)[i] - mean[i % 2]) / std::sqrt(variance[i % 2] + kEpsilon), 1e-5);
  EXPECT_EQ(values_of(buffers[0].tensor), mean);
  EXPECT_EQ(values_of(buffers[1].tensor), variance);
  // In evaluation the statistics are constants, so backward is a plain scaling.
  const auto dy = noise_tensor(Shape{64, 2}, 2);
  const auto dx = values_of(model.backward(context, dy, {}));
  for (size_t i = 0; i < dx.size(); ++i)
    EXPECT_NEAR(dx[i], values_of(dy)[i] / std::sqrt(variance[i % 2] + kEpsilon), 1e-5);
}

// One rank trains while the other evaluates: both get an error at their next blocking call.
TEST(Norms, RanksInDifferentModesHearOfIt) {
  test::run_threads(2, [](Communicator& comm) {
    nn::Sequential model(1);
    model.add("norm", nn::sync_batch_norm(comm, 2));
    model.set_training(comm.rank() == 0);
    test::expect_error(ErrorCode::mismatch, "batch norm norm forward", [&] {
      model.forward(noise_tensor(Shape{4, 2}, 1));
      float loss = 1;
      comm.allreduce_blocking("loss", &loss, 1);
    });
  });
}

}  // namespace
}  // namespace tutti
