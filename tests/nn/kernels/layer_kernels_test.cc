// The kernels of layers are compared with plain references in every type, and the references with
// finite differences. Also covers edge cases, refusals and threads.

#include "tutti/adapters/nn/kernels/layer_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/nn/layer_check.h"
#include "tests/support/expect_error.h"
#include "tutti/adapters/nn/kernels/layer_plugin.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using test::expect_close;
using test::expect_is_gradient;
using test::expect_refused;
using test::noise_tensor;
using test::parameter_tensor;
using test::tensor_of;
using test::Values;
using test::values_of;

Tensor zeros(const Shape& shape, DataType dtype = DataType::f32) { return Tensor(shape, dtype); }

Tensor labels_of(const std::vector<int64_t>& labels) {
  Tensor tensor(Shape{static_cast<int64_t>(labels.size())}, DataType::i64);
  std::copy(labels.begin(), labels.end(), tensor.as<int64_t>());
  return tensor;
}

TEST(WindowCount, IsZeroWhereNoWindowFits) {
  EXPECT_EQ(window_count(28, 5, 1), 24);
  EXPECT_EQ(window_count(9, 2, 2), 4);
  EXPECT_EQ(window_count(7, 3, 2), 3);
  EXPECT_EQ(window_count(5, 5, 3), 1);
  EXPECT_EQ(window_count(4, 5, 1), 0);
  EXPECT_EQ(window_count(4, 5, 7), 0);
  EXPECT_EQ(window_count(0, 9, 2), 0);
}

TEST(LayerKernels, LinearEqualsItsReference) {
  const auto kernels = test::layers_under_test();
  for (const auto dtype : test::kLayerTypes)
    for (const bool has_bias : {true, false})
      for (const auto& [input, weight] :
           std::vector<std::pair<Shape, Shape>>{{{1, 1}, {1, 1}},
                                                {{3, 7}, {5, 7}},
                                                {{2, 3, 7}, {4, 7}},
                                                {{0, 7}, {5, 7}},
                                                {{200, 7}, {40, 7}},
                                                {{32, 400}, {120, 400}}}) {
        const auto shape = linear_shape(input, weight);
        const auto x = noise_tensor(input, 1, dtype), w = parameter_tensor(weight, 2, dtype),
                   b = parameter_tensor(Shape{has_bias ? shape.outputs : 0}, 3, dtype),
                   dy = noise_tensor(linear_output(input, weight), 4, dtype);
        auto y = zeros(dy.shape(), dtype), dx = zeros(x.shape(), dtype), dw = zeros(w.shape()),
             db = zeros(b.shape());
        kernels->linear_forward(x, w, b, y);
        expect_close(y, reference::linear_forward(shape, values_of(x), values_of(w), values_of(b)),
                     "output", dtype, has_bias && test::layers_round_twice ? 2 : 1);
        const auto d = reference::linear_backward(shape, values_of(x), values_of(w), values_of(dy));
        kernels->linear_backward_input(w, dy, dx);
        kernels->linear_backward_weights(x, dy, dw, db);
        expect_close(dx, d.input, "input gradient");
        expect_close(dw, d.weight, "weight gradient");
        if (has_bias) expect_close(db, d.bias, "bias gradient");
      }
}

struct ConvolutionCase {
  ConvolutionOptions options;
  Shape input, weight;
};
const std::vector<ConvolutionCase>& convolution_cases() {
  static const std::vector<ConvolutionCase> kCases = {
      {{1, 0}, {1, 1, 3, 3}, {1, 1, 3, 3}},      {{2, 1}, {2, 3, 9, 7}, {4, 3, 3, 3}},
      {{1, 2}, {4, 6, 14, 14}, {16, 6, 5, 5}},   {{2, 0}, {1, 2, 5, 5}, {3, 2, 1, 1}},
      {{1, 0}, {0, 2, 5, 5}, {3, 2, 3, 3}},      {{1, 1}, {2, 2, 3, 4, 5}, {3, 2, 3, 3, 3}},
      {{2, 0}, {1, 3, 5, 4, 4}, {2, 3, 2, 2, 2}}};
  return kCases;
}

TEST(LayerKernels, ConvolutionEqualsItsReference) {
  const auto kernels = test::layers_under_test();
  for (const auto dtype : test::kLayerTypes)
    for (const bool has_bias : {true, false})
      for (const auto& [options, input, weight] : convolution_cases()) {
        SCOPED_TRACE(input.to_string() + " with " + weight.to_string());
        const auto shape = convolution_shape(options, input, weight);
        const auto x = noise_tensor(input, 1, dtype), w = parameter_tensor(weight, 2, dtype),
                   b = noise_tensor(Shape{has_bias ? weight[0] : 0}, 3),
                   dy = noise_tensor(convolution_output(shape), 4, dtype);
        auto y = zeros(dy.shape(), dtype), dx = zeros(x.shape(), dtype), dw = zeros(w.shape()),
             db = zeros(b.shape());
        kernels->convolution_forward(options, x, w, b, y);
        expect_close(
            y, reference::convolution_forward(shape, values_of(x), values_of(w), values_of(b)),
            "output", dtype, test::layers_round_twice ? 2 : 1);
        const auto d =
            reference::convolution_backward(shape, values_of(x), values_of(w), values_of(dy));
        kernels->convolution_backward_input(options, w, dy, dx);
        kernels->convolution_backward_weights(options, x, dy, dw, db);
        expect_close(dx, d.input, "input gradient");
        expect_close(dw, d.weight, "weight gradient",
                     test::layers_round_twice ? dtype : DataType::f32);
        if (has_bias) expect_close(db, d.bias, "bias gradient");
      }
}

TEST(LayerKernels, PoolingEqualsItsReference) {
  const auto kernels = test::layers_under_test();
  for (const auto dtype : test::kLayerTypes)
    for (const auto pooling : {Pooling::max, Pooling::average})
      for (const auto& [kernel, stride, padding, input] :
           std::vector<std::tuple<int64_t, int64_t, int64_t, Shape>>{{2, 2, 0, {2, 3, 9, 8}},
                                                                     {3, 2, 0, {1, 1, 7, 7}},
                                                                     {2, 3, 0, {2, 3, 9, 6}},
                                                                     {5, 1, 0, {1, 2, 5, 8}},
                                                                     {3, 2, 1, {2, 3, 12, 9}},
                                                                     {7, 1, 0, {2, 3, 7, 7}},
                                                                     {2, 2, 0, {0, 3, 4, 4}}}) {
        const PoolingOptions options{pooling, kernel, stride, padding};
        const auto shape = pooling_shape(options, input);
        const auto x = noise_tensor(input, 7, dtype),
                   dy = noise_tensor(pooling_output(shape), 8, dtype);
        auto y = zeros(dy.shape(), dtype), dx = zeros(input, dtype),
             workspace =
                 zeros(Shape{kernels->pooling_workspace_bytes(options, input)}, DataType::u8);
        kernels->pooling_forward(options, x, y, workspace);
        expect_close(y, reference::pooling_forward(shape, values_of(x)), "output");
        kernels->pooling_backward(options, dy, workspace, dx);
        expect_close(dx, reference::pooling_backward(shape, values_of(x), values_of(dy)),
                     "input gradient");
      }
}

TEST(LayerKernels, ActivationsEqualTheirReferences) {
  const auto kernels = test::layers_under_test();
  for (const auto dtype : test::kLayerTypes)
    for (const auto activation : {Activation::relu, Activation::tanh, Activation::gelu})
      for (const int64_t count : {0, 1, 1001}) {
        const auto x = noise_tensor(Shape{count}, 1, dtype),
                   dy = noise_tensor(Shape{count}, 2, dtype);
        auto y = zeros(Shape{count}, dtype), dx = zeros(Shape{count}, dtype);
        kernels->activation_forward(activation, x, y);
        expect_close(y, reference::activation_forward(activation, values_of(x)), "output");
        if (dtype != DataType::f32 && !keeps_input(activation))
          continue;  // backward would use the rounded output
        kernels->activation_backward(activation, keeps_input(activation) ? x : y, dy, dx);
        expect_close(dx, reference::activation_backward(activation, values_of(x), values_of(dy)),
                     "input gradient");
      }
}

TEST(LayerKernels, CrossEntropyEqualsItsReference) {
  const auto kernels = test::layers_under_test();
  const std::vector<int64_t> labels{0, 6, 3, 3, 1};
  for (const auto dtype : test::kLayerTypes) {
    const auto logits = noise_tensor(Shape{5, 7}, 1, dtype);
    auto p = zeros(Shape{5, 7}), losses = zeros(Shape{5}), d = zeros(Shape{5, 7}, dtype);
    const auto expected = reference::softmax_cross_entropy_forward(7, values_of(logits), labels);
    kernels->softmax_cross_entropy_forward(logits, labels_of(labels), p, losses);
    expect_close(p, expected.log_probabilities, "log probabilities");
    expect_close(losses, expected.losses, "losses");
    kernels->softmax_cross_entropy_backward(p, labels_of(labels), 0.25f, d);
    expect_close(
        d, reference::softmax_cross_entropy_backward(7, expected.log_probabilities, labels, 0.25),
        "logit gradient");
  }
}

TEST(LayerKernels, GradientsOfParametersAddUp) {
  const auto kernels = test::layers_under_test();
  const auto x = noise_tensor(Shape{3, 7}, 1), dy = noise_tensor(Shape{3, 5}, 2);
  auto once = zeros(Shape{5, 7}), twice = zeros(Shape{5, 7}), bias = zeros(Shape{5});
  kernels->linear_backward_weights(x, dy, once, bias);
  kernels->linear_backward_weights(x, dy, twice, bias);
  kernels->linear_backward_weights(x, dy, twice, bias);
  kernels->add(once, once);
  EXPECT_EQ(values_of(twice), values_of(once));
}

TEST(LayerReference, GradientsAreThoseOfDifferences) {
  const auto x = values_of(noise_tensor(Shape{2, 3}, 1)),
             w = values_of(noise_tensor(Shape{4, 3}, 2)), b = values_of(noise_tensor(Shape{4}, 3)),
             dy = values_of(noise_tensor(Shape{2, 4}, 4));
  const LinearShape linear{2, 3, 4};
  const auto d = reference::linear_backward(linear, x, w, dy);
  expect_is_gradient(
      d.input, x, dy, [&](const Values& v) { return reference::linear_forward(linear, v, w, b); },
      "linear input");
  expect_is_gradient(
      d.weight, w, dy, [&](const Values& v) { return reference::linear_forward(linear, x, v, b); },
      "linear weight");
  expect_is_gradient(
      d.bias, b, dy, [&](const Values& v) { return reference::linear_forward(linear, x, w, v); },
      "linear bias");
  for (const auto& [options, input, weight] : std::vector<ConvolutionCase>{
           {{2, 1}, {2, 2, 5, 4}, {3, 2, 3, 3}}, {{1, 1}, {1, 2, 3, 3, 2}, {2, 2, 2, 2, 2}}}) {
    const auto shape = convolution_shape(options, input, weight);
    const auto cx = values_of(noise_tensor(input, 1)), cw = values_of(noise_tensor(weight, 2)),
               cb = values_of(noise_tensor(Shape{weight[0]}, 3)),
               cdy = values_of(noise_tensor(convolution_output(shape), 4));
    const auto c = reference::convolution_backward(shape, cx, cw, cdy);
    expect_is_gradient(
        c.input, cx, cdy,
        [&](const Values& v) { return reference::convolution_forward(shape, v, cw, cb); },
        "convolution input");
    expect_is_gradient(
        c.weight, cw, cdy,
        [&](const Values& v) { return reference::convolution_forward(shape, cx, v, cb); },
        "convolution weight");
    expect_is_gradient(
        c.bias, cb, cdy,
        [&](const Values& v) { return reference::convolution_forward(shape, cx, cw, v); },
        "convolution bias");
  }
  for (const auto pooling : {Pooling::max, Pooling::average}) {
    const auto shape = pooling_shape({pooling, 3, 2, 1}, Shape{2, 2, 7, 6});
    const auto px = values_of(noise_tensor(Shape{2, 2, 7, 6}, 5)),
               pdy = values_of(noise_tensor(pooling_output(shape), 6));
    expect_is_gradient(
        reference::pooling_backward(shape, px, pdy), px, pdy,
        [&](const Values& v) { return reference::pooling_forward(shape, v); }, "pooling");
  }
  for (const auto activation : {Activation::relu, Activation::tanh, Activation::gelu}) {
    const auto ax = values_of(noise_tensor(Shape{33}, 7)),
               ady = values_of(noise_tensor(Shape{33}, 8));
    expect_is_gradient(
        reference::activation_backward(activation, ax, ady), ax, ady,
        [&](const Values& v) { return reference::activation_forward(activation, v); },
        "activation");
  }
  const std::vector<int64_t> labels{2, 0};
  const auto logits = values_of(noise_tensor(Shape{2, 3}, 9));
  const auto forward = [&](const Values& v) {
    return reference::softmax_cross_entropy_forward(3, v, labels);
  };
  expect_is_gradient(
      reference::softmax_cross_entropy_backward(3, forward(logits).log_probabilities, labels, 0.5),
      logits, {0.5, 0.5}, [&](const Values& v) { return forward(v).losses; }, "cross-entropy");
}

TEST(LayerKernels, LargeLogitsStayFinite) {
  const auto kernels = test::layers_under_test();
  const auto logits = tensor_of(Shape{2, 3}, {1e4, -1e4, 0, -3e38, 88, 3e38});
  auto p = zeros(Shape{2, 3}), losses = zeros(Shape{2}), d = zeros(Shape{2, 3});
  kernels->softmax_cross_entropy_forward(logits, labels_of({0, 2}), p, losses);
  // oneDNN approximates exp and log with an error of a few units in the last place of 1.
  for (const float loss : losses.span<float>()) EXPECT_NEAR(loss, 0, 1e-5);
  kernels->softmax_cross_entropy_backward(p, labels_of({0, 2}), 1, d);
  for (const float value : d.span<float>()) EXPECT_TRUE(std::isfinite(value));
}

TEST(CpuLayers, WhatDoesNotFitIsRefusedByName) {
  const auto kernels = make_layer_kernels();
  const auto f32 = [](const Shape& shape) { return zeros(shape); };
  const Tensor none(Shape{0}, DataType::f32);
  expect_refused(
      "linear cannot take [3,4] with a weight [2,5]; expected [..., inputs] and "
      "[outputs, inputs], each at least 1",
      [&] {
        kernels->linear_forward(f32({3, 4}), f32({2, 5}), none, f32({3, 2}));
      });
  expect_refused("linear: the output has shape [3,3]; expected [3,2]", [&] {
    kernels->linear_forward(f32({3, 4}), f32({2, 4}), none, f32({3, 3}));
  });
  expect_refused(
      "linear got a tensor f64[3,4] on cpu; expected f32, bf16 or f16, row-major, on the "
      "cpu",
      [&] {
        kernels->linear_forward(zeros({3, 4}, DataType::f64), f32({2, 4}), none, f32({3, 2}));
      });
  expect_refused("linear got a parameter's gradient or a statistic in bf16; expected f32", [&] {
    kernels->linear_backward_weights(f32({3, 4}), f32({3, 2}), zeros({2, 4}, DataType::bf16), none);
  });
  expect_refused("convolution cannot take images [1,1,6,6] with filters [2,1,9,9], stride 1", [&] {
    kernels->convolution_forward({}, f32({1, 1, 6, 6}), f32({2, 1, 9, 9}), none, none);
  });
  expect_refused("stride 0", [&] {
    kernels->convolution_forward({0, 0}, f32({1, 1, 6, 6}), f32({2, 1, 3, 3}), none, none);
  });
  expect_refused(
      "pooling cannot take images [1,1,2,6] with windows of 3x3, stride 3, padding 0: every extent "
      "but the batch must be at least 1, the channels must be equal and the window must fit into "
      "the image",
      [&] {
        kernels->pooling_forward({Pooling::max, 3, 3, 0}, f32({1, 1, 2, 6}), none, none);
      });
  expect_refused(
      "softmax cross-entropy got logits [2,2] and labels i64[3]; expected [batch, "
      "classes] and i64[batch]",
      [&] {
        kernels->softmax_cross_entropy_forward(f32({2, 2}), labels_of({0, 0, 0}), f32({2, 2}),
                                               f32({2}));
      });
  for (const int64_t label : {int64_t{2}, int64_t{-1}, std::numeric_limits<int64_t>::max()})
    expect_refused("label 1 of the batch is " + std::to_string(label) + "; expected 0 to 1", [&] {
      kernels->softmax_cross_entropy_forward(f32({2, 2}), labels_of({0, label}), f32({2, 2}),
                                             f32({2}));
    });
  expect_refused("0 threads", [] { make_layer_kernels({}, 0); });
  test::expect_error(ErrorCode::unavailable, "no layers are computed on cuda: there is no /", [] {
    load_layer_plugin(DeviceKind::cuda, "/nowhere/libtutti_layers_cuda.so");
  });
}

TEST(LayerKernels, DropoutOfAPartIsThatOfTheWhole) {
  const auto kernels = test::layers_under_test();
  const RandomKey key{.seed = 11, .purpose = 3, .step = 2};
  const auto x = noise_tensor(Shape{40}, 1);
  auto whole = zeros(Shape{40});
  kernels->dropout(key, 0, 0.5, x, whole);
  for (const int64_t first : {1, 2, 3, 4, 7}) {
    const int64_t count = 40 - first;
    auto part = zeros(Shape{count});
    kernels->dropout(key, static_cast<uint64_t>(first), 0.5,
                     TensorView(x.as<float>() + first, Shape{count}, DataType::f32), part);
    for (int64_t i = 0; i < count; ++i)
      EXPECT_EQ(part.as<float>()[i], whole.as<float>()[first + i]) << first << " " << i;
  }
}

TEST(CpuLayers, TwoThreadsComputeTheSameLayer) {
  const auto one = make_layer_kernels(), two = make_layer_kernels({}, 2);
  const auto x = noise_tensor(Shape{8, 3, 12, 12}, 1), w = noise_tensor(Shape{8, 3, 3, 3}, 2),
             b = noise_tensor(Shape{8}, 3);
  auto expected = zeros(Shape{8, 8, 12, 12}), y = zeros(Shape{8, 8, 12, 12});
  one->convolution_forward({1, 1}, x, w, b, expected);
  two->convolution_forward({1, 1}, x, w, b, y);
  expect_close(y, values_of(expected), "output");
}

}  // namespace
}  // namespace tutti
