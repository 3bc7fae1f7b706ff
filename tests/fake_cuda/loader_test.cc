// Batches that a loader's thread copies to a device before they are needed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/support/expect_error.h"
#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/nn.h"
#include "tutti/tensor/tensor.h"

namespace tutti::nn {
namespace {

constexpr Device kGpu{DeviceKind::fake, 0};

Dataset random_images(int64_t count) {
  Dataset data{Tensor(Shape{count, 2, 9, 7}, DataType::u8), Tensor(Shape{count}, DataType::u8), 10};
  std::mt19937 random(7);
  for (auto& pixel : data.images.span<uint8_t>()) pixel = static_cast<uint8_t>(random());
  for (auto& label : data.labels.span<uint8_t>()) label = static_cast<uint8_t>(random() % 10);
  return data;
}

std::vector<float> floats_of(const Tensor& host) {
  return {host.span<float>().begin(), host.span<float>().end()};
}

class LoaderOnFakeCuda : public testing::Test {
 protected:
  LoaderOnFakeCuda() { test::fake_cuda().take_faults(); }
  ~LoaderOnFakeCuda() override {
    test::fake_cuda().set_memory_limit(size_t{16} << 30);
    EXPECT_THAT(test::fake_cuda().take_faults(), testing::IsEmpty());
  }
  LoaderOptions to_the_gpu() const {
    return {.batch = 8, .drop_last = false, .device = kGpu, .stream = kernels_->stream()};
  }

  const Dataset data_ = random_images(45);
  const std::unique_ptr<LayerKernels> kernels_ = make_layer_kernels(kGpu);
};

TEST_F(LoaderOnFakeCuda, BatchesAreThoseOfTheHost) {
  DataLoader there(data_, to_the_gpu()), here(data_, {.batch = 8, .drop_last = false});
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int step = 0; step < 6; ++step) {
      const auto waits = test::fake_cuda().synchronize_count();
      const auto got = there.next(), wanted = here.next();
      EXPECT_EQ(test::fake_cuda().synchronize_count(), waits);
      ASSERT_TRUE(got && wanted);
      EXPECT_EQ(got->images.device(), kGpu);
      EXPECT_EQ(got->images.view().stream(), kernels_->stream());
      EXPECT_EQ(got->images.shape(), wanted->images.shape());
      EXPECT_EQ(floats_of(on_host(got->images)), floats_of(wanted->images));
      EXPECT_THAT(got->labels.span<int64_t>(),
                  testing::ElementsAreArray(wanted->labels.span<int64_t>()));
    }
    EXPECT_FALSE(there.next());
    EXPECT_FALSE(here.next());
  }
}

// The host runs ahead: it has released a batch that its stream has not read yet, while the loader
// sends later batches.
TEST_F(LoaderOnFakeCuda, ABatchStaysUntilItsReadersAreDone) {
  auto& device = test::fake_cuda();
  const auto wanted = DataLoader(data_, {.batch = 8, .drop_last = false}).next();
  std::vector<float> seen(static_cast<size_t>(wanted->images.count()));
  uint64_t* const go = device.take_word();
  {
    DataLoader loader(data_, to_the_gpu());
    auto batch = loader.next();
    device.wait_word(kernels_->stream(), go, 1);
    device.copy(seen.data(), batch->images.data(), static_cast<size_t>(batch->images.bytes()),
                kernels_->stream());
    batch.reset();
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(loader.next());
  }  // the loader is destroyed before the stream reads
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::atomic_ref(*go).store(1, std::memory_order_release);
  device.synchronize(kernels_->stream());
  EXPECT_EQ(seen, floats_of(wanted->images));
  device.give_back_word(go);
}

// The third batch reuses the first batch's memory, so the loader's stream waits for the reader of
// the first. The third batch therefore arrives only after the host has queued its reader, which
// must wait for it.
TEST_F(LoaderOnFakeCuda, AReaderWaitsForABatchOnItsWay) {
  auto& device = test::fake_cuda();
  DataLoader here(data_, {.batch = 8, .drop_last = false});
  for (int i = 0; i < 2; ++i) here.next();
  const auto wanted = here.next();
  std::vector<float> seen(static_cast<size_t>(wanted->images.count()));
  uint64_t* const go = device.take_word();
  {
    DataLoader loader(data_, to_the_gpu());
    auto first = loader.next();
    device.wait_word(kernels_->stream(), go, 1);
    first.reset();
    EXPECT_TRUE(loader.next());
    const auto third = loader.next();
    device.copy(seen.data(), third->images.data(), static_cast<size_t>(third->images.bytes()),
                kernels_->stream());
    std::atomic_ref(*go).store(1, std::memory_order_release);
    device.synchronize(kernels_->stream());
  }
  EXPECT_EQ(seen, floats_of(wanted->images));
  device.give_back_word(go);
}

TEST_F(LoaderOnFakeCuda, NoRoomForABatchIsToldAndTriedAgain) {
  auto& device = test::fake_cuda();
  const auto data = random_images(40'000);  // a batch of 20 MB of f32
  auto options = to_the_gpu();
  options.batch = 40'000;
  DataLoader loader(data, options);
  device.set_memory_limit(1 << 20);
  std::vector<Tensor> held;  // takes the memory that earlier tests left in the pool
  try {
    while (true) held.push_back(kernels_->make_tensor(data.images.shape(), DataType::f32));
  } catch (const Error& error) {
    ASSERT_EQ(error.code(), ErrorCode::out_of_memory);
  }
  test::expect_error(ErrorCode::out_of_memory, "on fake:0: ", [&] { loader.next(); });
  device.set_memory_limit(size_t{16} << 30);
  EXPECT_TRUE(loader.next());
}

TEST_F(LoaderOnFakeCuda, AModelLearnsFromThemAsOnTheHost) {
  const auto losses_on = [&](Device device) {
    Sequential model(1, 1, device);
    model.add("flatten", flatten()).add("fc", linear(2 * 9 * 7, 10));
    Sgd sgd(model.parameters(), {.learning_rate = 0.1});
    DataLoader loader(data_, {.batch = 15, .device = model.device(), .stream = model.stream()});
    std::vector<double> losses;
    for (int epoch = 0; epoch < 20; ++epoch)
      for (const auto& [images, labels] : loader) {
        model.zero_grad();
        const CrossEntropy loss(model.forward(images), labels);
        model.backward(loss);
        sgd.step();
        losses.push_back(loss.value());
      }
    return losses;
  };
  const auto there = losses_on(kGpu), here = losses_on({});
  ASSERT_EQ(there.size(), 60);
  EXPECT_THAT(there, testing::Pointwise(testing::DoubleNear(1e-5), here));
  EXPECT_LT(there.back(), 0.7 * there.front());
}

}  // namespace
}  // namespace tutti::nn
