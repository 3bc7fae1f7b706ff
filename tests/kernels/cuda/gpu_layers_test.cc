// The layers of a GPU that are kernels of our own, run by the host, against the plain loops in f64.
// Blocks, and within a phase threads, run in any order.

#include <gmock/gmock.h>

#include <functional>
#include <numeric>

#include "tests/nn/layer_check.h"
#include "tutti/kernels/cuda/layers/layer_tile.h"

namespace tutti {
namespace {

using cuda::kThreads;
using reference::Values;
using test::expect_close;
using test::noise_tensor;
using test::values_of;

std::vector<int> any_order(int64_t count) {
  static std::mt19937 random(11);
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

void each_tile(int64_t elements, const std::function<void(int64_t, int)>& run) {
  for (const int tile : any_order((elements + cuda::kLayerElements - 1) / cuda::kLayerElements))
    for (const int thread : any_order(kThreads)) run(tile, thread);
}

struct LossTensors {
  LossTensors(int64_t batch, int64_t classes, unsigned seed)
      : logits(noise_tensor({batch, classes}, seed)),
        log_probabilities(Shape{batch, classes}, DataType::f32),
        losses(Shape{batch}, DataType::f32) {
    for (int64_t n = 0; n < batch; ++n) labels.push_back((n * 7 + seed) % classes);
  }
  cuda::LossRows rows() {
    return {logits.shape()[1], labels.data(), logits.as<float>(), log_probabilities.as<float>(),
            losses.as<float>()};
  }
  void forward() {
    float largest[kThreads];
    double sums[kThreads];
    for (const int tile : any_order(losses.count()))
      for (int phase = 0; phase < cuda::kSoftmaxPhases; ++phase)
        for (const int thread : any_order(kThreads))
          cuda::softmax_tile(rows(), tile, thread, phase, largest, sums);
  }

  Tensor logits;
  std::vector<int64_t> labels;
  Tensor log_probabilities, losses;
};

TEST(GpuLayers, SoftmaxCrossEntropyFollowsItsReference) {
  for (const int64_t classes : {1, 2, 10, 255, 256, 257, 1000})
    for (const int64_t batch : {0, 1, 5}) {
      LossTensors loss(batch, classes, static_cast<unsigned>(classes));
      // As large as logits of wrong guesses become.
      for (int64_t i = 0; i < loss.logits.count(); ++i) loss.logits.as<float>()[i] *= 20;
      loss.forward();
      const auto right =
          reference::softmax_cross_entropy_forward(classes, values_of(loss.logits), loss.labels);
      expect_close(loss.log_probabilities, right.log_probabilities, "log probabilities");
      expect_close(loss.losses, right.losses, "losses");
      Tensor gradient(Shape{batch, classes}, DataType::f32);
      for (const int tile : any_order(batch))
        for (const int thread : any_order(kThreads))
          cuda::softmax_backward_tile(loss.rows(), 0.25f, gradient.as<float>(), tile, thread,
                                      kThreads);
      expect_close(gradient,
                   reference::softmax_cross_entropy_backward(classes, right.log_probabilities,
                                                             loss.labels, 0.25),
                   "gradient of the logits");
    }
}

TEST(GpuLayers, ALabelThatIsNoneMakesItsLossNaN) {
  for (const int64_t label : {int64_t{-1}, int64_t{10}, int64_t{1} << 60}) {
    LossTensors loss(3, 10, 1);
    loss.labels[1] = label;
    loss.forward();
    EXPECT_FALSE(std::isnan(loss.losses.as<float>()[0]));
    EXPECT_TRUE(std::isnan(loss.losses.as<float>()[1]));
    EXPECT_FALSE(std::isnan(loss.losses.as<float>()[2]));
  }
}

TEST(GpuLayers, ALogitThatIsNaNMakesItsRowNaN) {
  LossTensors loss(2, 300, 1);
  loss.logits.as<float>()[300 + 299] = std::numeric_limits<float>::quiet_NaN();
  loss.forward();
  EXPECT_FALSE(std::isnan(loss.losses.as<float>()[0]));
  EXPECT_TRUE(std::isnan(loss.losses.as<float>()[1]));
}

TEST(GpuLayers, BiasAndReluOfRowsAndImages) {
  for (const bool has_bias : {false, true})
    for (const bool has_relu : {false, true})
      for (const auto& shape : {Shape{7, 33, 1}, Shape{3, 6, 24 * 24}, Shape{0, 4, 9}}) {
        const auto input = noise_tensor(shape, 2), bias = noise_tensor({shape[1]}, 3);
        const auto gradient = noise_tensor(shape, 4);
        Tensor output(shape, DataType::f32), input_gradient(shape, DataType::f32);
        auto bias_gradient = noise_tensor({shape[1]}, 5);
        const cuda::BiasRelu layer{input.count(), shape[1], shape[2],
                                   has_bias ? bias.as<float>() : nullptr, has_relu};
        each_tile(input.count(), [&](int64_t tile, int thread) {
          cuda::bias_relu_tile(layer, input.as<float>(), output.as<float>(), tile, thread,
                               kThreads);
          cuda::relu_backward_tile(input.count(), input.as<float>(), gradient.as<float>(),
                                   input_gradient.as<float>(), tile, thread, kThreads);
        });
        auto sums = values_of(bias_gradient);
        for (int64_t i = 0; i < input.count(); ++i) {
          const auto channel = i / shape[2] % shape[1];
          float right = input.as<float>()[i] + (has_bias ? bias.as<float>()[channel] : 0);
          if (has_relu) right = std::max(right, 0.0f);
          ASSERT_EQ(output.as<float>()[i], right);
          ASSERT_EQ(input_gradient.as<float>()[i],
                    input.as<float>()[i] > 0 ? gradient.as<float>()[i] : 0);
          sums[static_cast<size_t>(channel)] += static_cast<double>(gradient.as<float>()[i]);
        }
        double shared[kThreads];
        for (const int tile : any_order(shape[1]))
          for (int phase = 0; phase < cuda::kBiasPhases; ++phase)
            for (const int thread : any_order(kThreads))
              cuda::bias_gradient_tile(layer, gradient.as<float>(), bias_gradient.as<float>(), tile,
                                       thread, phase, shared);
        expect_close(bias_gradient, sums, "gradient of the bias");
      }
}

TEST(GpuLayers, ReluKeepsNaN) {
  float value = std::numeric_limits<float>::quiet_NaN();
  cuda::bias_relu_tile({1, 1, 1, nullptr, true}, &value, &value, 0, 0, kThreads);
  EXPECT_TRUE(std::isnan(value));
}

TEST(GpuLayers, MaxPoolingFollowsItsReference) {
  for (const auto& [kernel, stride, padding] :
       {std::array<int64_t, 3>{2, 2, 0}, {3, 2, 1}, {3, 1, 1}, {2, 3, 0}, {5, 2, 2}})
    for (const bool is_tied : {false, true}) {
      const PoolingShape shape{{Pooling::max, kernel, stride, padding}, 2, 3, 25, 12};
      const cuda::MaxPooling layer{
          6, 25, 12, shape.output_height(), shape.output_width(), kernel, stride, padding};
      auto input = noise_tensor({2, 3, 25, 12}, 6);
      // Relu's zeros are what windows mostly tie on.
      if (is_tied)
        for (int64_t i = 0; i < input.count(); ++i)
          input.as<float>()[i] = std::max(input.as<float>()[i], 0.0f);
      const Shape pooled{2, 3, shape.output_height(), shape.output_width()};
      const auto gradient = noise_tensor(pooled, 7);
      Tensor output(pooled, DataType::f32), input_gradient(input.shape(), DataType::f32);
      std::vector<uint8_t> places(static_cast<size_t>(output.count()));
      each_tile(output.count(), [&](int64_t tile, int thread) {
        cuda::max_pooling_tile(layer, input.as<float>(), output.as<float>(), places.data(), tile,
                               thread, kThreads);
      });
      each_tile(input.count(), [&](int64_t tile, int thread) {
        cuda::max_pooling_backward_tile(layer, gradient.as<float>(), places.data(),
                                        input_gradient.as<float>(), tile, thread, kThreads);
      });
      expect_close(output, reference::pooling_forward(shape, values_of(input)), "output");
      expect_close(input_gradient,
                   reference::pooling_backward(shape, values_of(input), values_of(gradient)),
                   "gradient of the input");
    }
}

TEST(GpuLayers, MaxPoolingKeepsNaN) {
  float input[4] = {1, std::numeric_limits<float>::quiet_NaN(), 7, 2}, output = 0;
  uint8_t place = 0;
  cuda::max_pooling_tile({1, 2, 2, 1, 1, 2, 2, 0}, input, &output, &place, 0, 0, kThreads);
  EXPECT_TRUE(std::isnan(output));
  EXPECT_EQ(place, 1);
}

}  // namespace
}  // namespace tutti
