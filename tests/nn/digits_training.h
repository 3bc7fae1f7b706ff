#pragma once

// LeNet learns the digits of examples/data/mnist, on ranks and devices that the caller chooses. The
// environment variable MNIST replaces the folder where the sources are not available.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/ranks.h"
#include "tutti/nn.h"
#include "tutti/tensor/device_runtime.h"
#include "tutti/tensor/tensor.h"

namespace tutti::test {

inline nn::Sequential lenet(Device device, DataType dtype) {
  nn::Sequential model(1, 1, device);
  if (dtype != DataType::f32) model.add("narrow", nn::cast_to(dtype));
  model.add("conv1", nn::conv2d(1, 6, 5, {.stride = 1, .padding = 2}))
      .add("relu1", nn::relu())
      .add("pool1", nn::max_pool2d(2))
      .add("conv2", nn::conv2d(6, 16, 5))
      .add("relu2", nn::relu())
      .add("pool2", nn::max_pool2d(2))
      .add("flatten", nn::flatten())
      .add("fc1", nn::linear(400, 120))
      .add("relu3", nn::relu())
      .add("fc2", nn::linear(120, 84))
      .add("relu4", nn::relu())
      .add("fc3", nn::linear(84, 10));
  return model;
}

inline nn::Dataset digits_of(const std::string& part) {
  const char* folder = std::getenv("MNIST");
  const auto file = std::string(folder != nullptr ? folder : TUTTI_MNIST) + "/" + part;
  return nn::read_mnist(file + "-images-idx3-ubyte.gz", file + "-labels-idx1-ubyte.gz");
}

struct DigitsMethod {
  int epochs = 4;
  int64_t steps = -1;  // to take; if negative, all of them, followed by the test digits
  double learning_rate = 0.05, momentum = 0.9;
};

struct Trained {
  std::vector<float> parameters;
  double right = 0;  // per cent of the test digits; 0 if the training was not complete
};

/// Trains by SGD as one rank. All ranks together take 64 digits per step.
inline Trained train_digits(Communicator& comm, Device device, DataType dtype,
                            const DigitsMethod& method = {}) {
  static const auto training = digits_of("train"), testing = digits_of("t10k");
  auto model = lenet(device, dtype);
  nn::Sgd sgd(model.parameters(),
              {.learning_rate = method.learning_rate, .momentum = method.momentum});
  auto optimizer = distributed(comm, sgd, {.op = ReduceOp::sum});
  nn::StepAgreement agreement(comm,
                              {.loss_scale = {.first = dtype == DataType::f16 ? 65536.0 : 1.0}});
  nn::DataLoader loader(
      training, {.batch = 64 / comm.size(), .rank = comm.rank(), .size = comm.size(), .seed = 1});
  const int64_t all = method.epochs * loader.steps_per_epoch();
  const nn::CosineSchedule rate{.base = method.learning_rate, .total = all, .warmup = all / 24};
  for (int64_t step = 0; step < (method.steps < 0 ? all : method.steps); ++step) {
    auto batch = loader.next();
    if (!batch) batch = loader.next();
    sgd.set_learning_rate(rate(step));
    model.zero_grad();
    const nn::CrossEntropy loss(model.forward(batch->images), batch->labels);
    model.backward(loss, agreement.divisor());
    agreement.send(loss);
    optimizer.synchronize();
    if (agreement.finish(sgd.parameters()).is_skipped)
      optimizer.skip();
    else
      optimizer.step();
  }
  Trained trained;
  for (const auto& parameter : model.parameters()) {
    const auto host = on_host(parameter.value);
    trained.parameters.insert(trained.parameters.end(), host.span<float>().begin(),
                              host.span<float>().end());
  }
  if (method.steps >= 0) return trained;
  int64_t right = 0;
  nn::DataLoader tests(testing, {.batch = 100, .shuffle = false, .drop_last = false});
  for (const auto& [images, labels] : tests)
    right += nn::count_correct(model.forward(images), labels);
  trained.right = 100 * static_cast<double>(right) / static_cast<double>(testing.count());
  return trained;
}

/// Returns the largest difference between a parameter of `a` and of `b`.
inline float largest_difference(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.parameters.size(), b.parameters.size());
  float largest = 0;
  for (size_t i = 0; i < std::min(a.parameters.size(), b.parameters.size()); ++i)
    largest = std::max(largest, std::abs(a.parameters[i] - b.parameters[i]));
  return largest;
}

/// Runs train_digits() on ranks that are threads; all must end with the same bits. Backend peer
/// needs the device before the ranks connect. Backend memory copies gradients through the host.
inline Trained train_thread_ranks(Device device, int ranks, DataType dtype,
                                  const std::string& backend, const DigitsMethod& method = {}) {
  if (device.kind != DeviceKind::cpu) device_runtime(device.kind);
  Trained result;
  std::mutex mutex;
  run_threads(
      ranks,
      [&](Communicator& comm) {
        auto mine = train_digits(comm, device, dtype, method);
        const std::lock_guard lock(mutex);
        if (result.parameters.empty())
          result = std::move(mine);
        else
          EXPECT_EQ(std::memcmp(mine.parameters.data(), result.parameters.data(),
                                mine.parameters.size() * sizeof(float)),
                    0)
              << "ranks differ";
      },
      [&](Options& options) {
        options.backend = backend;
        options.determinism = Determinism::rank_order;
      },
      540);
  return result;
}

}  // namespace tutti::test
