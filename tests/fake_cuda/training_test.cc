// Training on a GPU that is none: LeNet learns its digits on ranks that are threads and share it,
// in every type, with the same bits each time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <string>
#include <tuple>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/support/ranks.h"
#include "tutti/nn.h"

namespace tutti::nn {
namespace {

Sequential lenet_on_fake(DataType dtype) {
  Sequential model(1, 1, {DeviceKind::fake, 0});
  if (dtype != DataType::f32) model.add("narrow", cast_to(dtype));
  model.add("conv1", conv2d(1, 6, 5, {.stride = 1, .padding = 2}))
      .add("relu1", relu())
      .add("pool1", max_pool2d(2))
      .add("conv2", conv2d(6, 16, 5))
      .add("relu2", relu())
      .add("pool2", max_pool2d(2))
      .add("flatten", flatten())
      .add("fc1", linear(400, 120))
      .add("relu3", relu())
      .add("fc2", linear(120, 84))
      .add("relu4", relu())
      .add("fc3", linear(84, 10));
  return model;
}

Dataset digits_of(const std::string& part) {
  const auto file = std::string(TUTTI_MNIST) + "/" + part;
  return read_mnist(file + "-images-idx3-ubyte.gz", file + "-labels-idx1-ubyte.gz");
}

struct Trained {
  std::vector<float> parameters;
  double right = 0;  // per cent of the test digits
};

// `steps`: of the whole training; below 0: all of `epochs`.
Trained train_on_fake(Communicator& comm, DataType dtype, int epochs, int64_t steps) {
  static const auto training = digits_of("train"), testing = digits_of("t10k");
  auto model = lenet_on_fake(dtype);
  Sgd sgd(model.parameters(), {.learning_rate = 0.05, .momentum = 0.9});
  auto optimizer = distributed(comm, sgd, {.op = ReduceOp::sum});
  StepAgreement agreement(comm, {.loss_scale = {.first = dtype == DataType::f16 ? 65536.0 : 1.0}});
  DataLoader loader(
      training, {.batch = 64 / comm.size(), .rank = comm.rank(), .size = comm.size(), .seed = 1});
  const int64_t all = epochs * loader.steps_per_epoch();
  const CosineSchedule rate{.base = 0.05, .total = all, .warmup = all / 24};
  for (int64_t step = 0; step < (steps < 0 ? all : steps); ++step) {
    auto batch = loader.next();
    if (!batch) batch = loader.next();
    sgd.set_learning_rate(rate(step));
    model.zero_grad();
    const CrossEntropy loss(model.forward(batch->images), batch->labels);
    model.backward(loss, agreement.divisor());
    agreement.send(loss);
    optimizer.synchronize();
    if (agreement.finish(sgd.parameters()).is_skipped)
      optimizer.skip();
    else
      optimizer.step();
  }
  Trained trained;
  const auto kernels = make_layer_kernels({DeviceKind::fake, 0});
  for (const auto& parameter : model.parameters()) {
    const auto host = kernels->download(parameter.value);
    trained.parameters.insert(trained.parameters.end(), host.span<float>().begin(),
                              host.span<float>().end());
  }
  int64_t right = 0;
  DataLoader tests(testing, {.batch = 100, .shuffle = false, .drop_last = false});
  if (steps < 0)
    for (const auto& [images, labels] : tests)
      right += count_correct(model.forward(images), labels);
  trained.right = 100 * static_cast<double>(right) / static_cast<double>(testing.count());
  EXPECT_THAT(test::fake_cuda().take_faults(), testing::IsEmpty());
  return trained;
}

// Backend peer needs the device before ranks meet; memory stages gradients through the host.
Trained train_thread_ranks(int ranks, DataType dtype, const std::string& backend, int epochs,
                           int64_t steps) {
  device_runtime(DeviceKind::fake);
  Trained result;
  std::mutex mutex;
  test::run_threads(
      ranks,
      [&](Communicator& comm) {
        auto mine = train_on_fake(comm, dtype, epochs, steps);
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

using Training = std::tuple<int, DataType, const char*>;  // ranks, type, backend

class TrainsOnFakeCuda : public testing::TestWithParam<Training> {};

TEST_P(TrainsOnFakeCuda, To97Percent) {
  const auto [ranks, dtype, backend] = GetParam();
  EXPECT_GE(train_thread_ranks(ranks, dtype, backend, 4, -1).right, 97);
}
const auto name_of = [](const auto& info) {
  const auto [ranks, dtype, backend] = info.param;
  return std::to_string(ranks) + "_" + std::string(to_string(dtype)) + "_" + backend;
};
INSTANTIATE_TEST_SUITE_P(Daily, TrainsOnFakeCuda,
                         testing::Values(Training(2, DataType::f16, "peer")), name_of);
INSTANTIATE_TEST_SUITE_P(
    Full, TrainsOnFakeCuda,
    testing::Values(Training(1, DataType::f32, "peer"), Training(1, DataType::bf16, "peer"),
                    Training(1, DataType::f16, "peer"), Training(2, DataType::f32, "peer"),
                    Training(2, DataType::bf16, "peer"), Training(4, DataType::f32, "peer"),
                    Training(4, DataType::bf16, "peer"), Training(4, DataType::f16, "peer"),
                    Training(2, DataType::f32, "memory"), Training(2, DataType::f16, "memory")),
    name_of);

TEST(FakeCudaTraining, HasTheSameBitsInEveryRunAndThroughEveryBackend) {
  for (const auto dtype : {DataType::f32, DataType::bf16, DataType::f16}) {
    const auto first = train_thread_ranks(2, dtype, "peer", 4, 6);
    for (const auto* backend : {"peer", "memory"}) {
      const auto second = train_thread_ranks(2, dtype, backend, 4, 6);
      EXPECT_EQ(first.parameters, second.parameters) << to_string(dtype) << " " << backend;
    }
  }
}

}  // namespace
}  // namespace tutti::nn
