// The promises of a GPU's layers besides their values: stream order, workspaces, behaviour during a
// capture, clear errors. Also tests that the fake detects violations.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/fake_cuda/fake_cuda_fixture.h"
#include "tests/nn/layer_check.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/adapters/nn/kernels/cuda/libraries/descriptor.h"
#include "tutti/adapters/nn/kernels/cuda/trainer/products.h"
#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/kernels/optimizer_steps.h"
#include "tutti/nn.h"
#include "tutti/tensor/tensor.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

using test::FakeCudaTest;
using test::kFake;

// --- the fake detects violations -----------------------------------------------------------------

// A product of 4 x 3 by 3 x 2 on device memory. Tests break single parts of it.
struct SpoiledProduct {
  cuda::CublasLt library = test::fake_cublaslt();
  cuda::Products products{library, {}};
  Tensor a, b, d, workspace;
  cuda::Product product;
  explicit SpoiledProduct(LayerKernels& kernels)
      : a(kernels.upload(test::noise_tensor(Shape{3, 4}, 1))),
        b(kernels.upload(test::noise_tensor(Shape{2, 3}, 2))),
        d(kernels.make_tensor(Shape{2, 4}, DataType::f32)) {
    product.a = {a.data(), DataType::f32, 4, 3, 4, false};
    product.b = {b.data(), DataType::f32, 3, 2, 3, false};
    product.d = {d.data(), DataType::f32, 4, 2, 4, false};
    workspace = kernels.make_tensor(Shape{static_cast<int64_t>(products.workspace_bytes(product))},
                                    DataType::u8);
  }
  void run(void* with, StreamRef stream) {
    products.multiply(product, with, static_cast<cudaStream_t>(stream.native));
  }
};

TEST_F(FakeCudaTest, AWorkspaceOfFewerBytesIsAFault) {
  SpoiledProduct spoiled(*kernels_);
  spoiled.run(spoiled.workspace.data(), kernels_->stream());
  EXPECT_THAT(test::fake_cuda().take_faults(), IsEmpty());
  const auto shorter = kernels_->make_tensor(Shape{spoiled.workspace.count() - 1}, DataType::u8);
  EXPECT_THROW(spoiled.run(shorter.data(), kernels_->stream()), Error);
  expect_fault("cuBLASLt: the workspace is not");
}

TEST_F(FakeCudaTest, MemoryOfTheHostIsAFault) {
  SpoiledProduct spoiled(*kernels_);
  alignas(256) static float aligned[64];
  spoiled.product.b.data = aligned;
  EXPECT_THROW(spoiled.run(spoiled.workspace.data(), kernels_->stream()), Error);
  expect_fault("side 1 is not memory of the device");
}

TEST_F(FakeCudaTest, WorseAlignmentGetsAPlanOfItsOwn) {
  const auto storage = kernels_->make_tensor(Shape{64}, DataType::f32);
  const auto at = [&](int64_t offset, Shape shape) {
    return TensorView(storage.as<float>() + offset, std::move(shape), DataType::f32, kFake,
                      kernels_->stream());
  };
  const auto output = kernels_->make_tensor(Shape{4, 2}, DataType::f32);
  kernels_->fill_zero(storage);
  for (const int64_t offset : {0, 1, 2, 4, 3})
    kernels_->linear_forward(at(offset, {4, 3}), at(offset + 16, {2, 3}), TensorView(), output);
  EXPECT_THAT(test::fake_cuda().take_faults(), IsEmpty());
}

TEST_F(FakeCudaTest, UnfinishedDescriptorsAreAFault) {
  const auto library = test::fake_cudnn();
  cuda::Descriptor graph(library, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  const cuda::Descriptor operation(library, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  EXPECT_THROW(graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation), Error);
  expect_fault("names a descriptor that is not finished");
  EXPECT_THROW(graph.finish(), Error);
  expect_fault("lacks attribute");
}

TEST_F(FakeCudaTest, WhatACaptureForbidsIsAFault) {
  auto& device = test::fake_cuda();
  device.begin_capture();
  EXPECT_THROW(device.synchronize(kernels_->stream()), Error);
  expect_fault("synchronized while it is captured");
  EXPECT_THROW(static_cast<void>(kernels_->make_tensor(Shape{int64_t{1} << 26}, DataType::f32)),
               Error);
  expect_fault("memory was taken from the driver");
}

TEST_F(FakeCudaTest, AFaultIsThrownAtWhoWaits) {
  test::fake_cuda().add_fault("planted");
  const auto tensor = kernels_->make_tensor(Shape{1}, DataType::f32);
  test::expect_error(ErrorCode::internal, "fake cuda: planted",
                     [&] { static_cast<void>(on_host(tensor)); });
}

// --- streams and captures ------------------------------------------------------------------------

// A step with layers of every library and a loss. Objects made at the first use are kept, and no
// call is made that a capture forbids.
TEST_F(FakeCudaTest, AWholeStepWaitsForNobody) {
  nn::Sequential model(1, 1, kFake);
  model.add("conv", nn::conv2d(2, 4, 3, {.padding = 1}))
      .add("norm", nn::batch_norm(4))
      .add("gelu", nn::gelu())
      .add("pool", nn::max_pool2d(2))
      .add("flatten", nn::flatten())
      .add("fc", nn::linear(4 * 4 * 4, 5));
  nn::Sgd sgd(model.parameters(), {.learning_rate = 0.1, .momentum = 0.9});
  const auto images = test::noise_tensor(Shape{3, 2, 8, 8}, 1);
  const Tensor labels(Shape{3}, DataType::i64);
  const auto step = [&] {
    model.zero_grad();
    const nn::CrossEntropy loss(model.forward(images), labels);
    model.backward(loss);
    sgd.step();
    return loss.count();
  };
  for (int i = 0; i < 3; ++i) step();
  auto& device = test::fake_cuda();
  device.synchronize(model.parameters().front().value.view().stream());
  const auto waits = device.synchronize_count();
  const auto descriptors = device.calls()["cublasLtMatmulAlgoGetHeuristic"];
  EXPECT_EQ(step(), 3);
  EXPECT_EQ(device.synchronize_count(), waits);
  EXPECT_EQ(device.calls()["cublasLtMatmulAlgoGetHeuristic"], descriptors);
  device.begin_capture();
  step();
  device.end_capture();
  EXPECT_THAT(device.take_faults(), IsEmpty());
  EXPECT_EQ(device.synchronize_count(), waits);
}

TEST_F(FakeCudaTest, UploadsLeaveTheHostsMemoryAtOnce) {
  Tensor host = test::noise_tensor(Shape{1000}, 1);
  const auto before = test::values_of(host);
  const auto there = kernels_->upload(host);
  std::memset(host.data(), 0, static_cast<size_t>(host.bytes()));
  EXPECT_EQ(test::values_of(on_host(there)), before);
}

// An invalid label must not cause a read outside of the rows. The loss becomes NaN instead.
TEST_F(FakeCudaTest, ALabelThatIsNoClassMakesItsLossNaN) {
  const auto logits = kernels_->upload(test::noise_tensor(Shape{3, 4}, 1));
  for (const int64_t label : {int64_t{-1}, int64_t{4}, std::numeric_limits<int64_t>::max()}) {
    const Tensor labels(Shape{3}, DataType::i64);
    labels.as<int64_t>()[1] = label;
    const auto losses = kernels_->make_tensor(Shape{3}, DataType::f32);
    kernels_->softmax_cross_entropy_forward(logits, kernels_->upload(labels),
                                            kernels_->make_tensor(Shape{3, 4}, DataType::f32),
                                            losses);
    const auto host = test::values_of(on_host(losses));
    EXPECT_TRUE(std::isfinite(host[0]) && std::isfinite(host[2]));
    EXPECT_TRUE(std::isnan(host[1])) << label;
    const auto rows = kernels_->make_tensor(Shape{3, 2}, DataType::f32);
    kernels_->embedding_forward(kernels_->upload(labels),
                                kernels_->upload(test::noise_tensor(Shape{4, 2}, 1)), rows);
    const auto taken = test::values_of(on_host(rows));
    EXPECT_TRUE(std::isfinite(taken[0]) && std::isnan(taken[2]) && std::isnan(taken[3]));
  }
}

// --- bad input -----------------------------------------------------------------------------------

void run_linear(LayerKernels& kernels) {
  kernels.linear_forward(kernels.upload(test::noise_tensor(Shape{4, 3}, 1)),
                         kernels.upload(test::noise_tensor(Shape{2, 3}, 2)), TensorView(),
                         kernels.make_tensor(Shape{4, 2}, DataType::f32));
}

void run_convolution(LayerKernels& kernels) {
  kernels.convolution_forward({}, kernels.upload(test::noise_tensor(Shape{1, 1, 4, 4}, 1)),
                              kernels.upload(test::noise_tensor(Shape{1, 1, 3, 3}, 2)),
                              TensorView(), kernels.make_tensor(Shape{1, 1, 2, 2}, DataType::f32));
}

TEST_F(FakeCudaTest, LibrariesThatAreAbsentAreOneLine) {
  test::fake_troubles().cublaslt_file = "/nowhere/libcublasLt.so.13";
  test::fake_troubles().cudnn_file = "/nowhere/libcudnn.so.9";
  test::expect_error(ErrorCode::unavailable,
                     "cuBLASLt cannot be loaded (/nowhere/libcublasLt.so.13: cannot open",
                     [&] { run_linear(*kernels_); });
  test::expect_error(ErrorCode::unavailable, "cuDNN cannot be loaded (/nowhere/libcudnn.so.9",
                     [&] { run_convolution(*kernels_); });
  // Everything else works.
  const auto x = kernels_->upload(test::noise_tensor(Shape{4}, 1));
  kernels_->activation_forward(Activation::relu, x, x);
  test::fake_troubles() = {};
  run_linear(*kernels_);
}

TEST_F(FakeCudaTest, LibrariesOfAnotherMajorVersionAreOneLine) {
  test::fake_troubles().cublaslt_version = 120'805;
  test::fake_troubles().cudnn_version = 100'000;
  test::expect_error(ErrorCode::version,
                     "libcublasLt is cuBLASLt 12, but layers were built for cuBLASLt 13",
                     [&] { run_linear(*kernels_); });
  test::expect_error(ErrorCode::version, "libcudnn is cuDNN 10, but layers were built for cuDNN 9",
                     [&] { run_convolution(*kernels_); });
}

TEST_F(FakeCudaTest, WhatALibraryRefusesIsInItsWords) {
  SpoiledProduct spoiled(*kernels_);
  test::expect_error(ErrorCode::internal, "cuBLASLt cannot multiply: CUBLAS_STATUS_INVALID_VALUE",
                     [&] { spoiled.run(nullptr, kernels_->stream()); });
  const auto library = test::fake_cudnn();
  cuda::Descriptor graph(library, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  test::expect_error(ErrorCode::internal,
                     "cuDNN cannot finish a descriptor: CUDNN_STATUS_BAD_PARAM (see the fake's "
                     "faults); CUDNN_LOGLEVEL_DBG=1 says more",
                     [&] { graph.finish(); });
  test::fake_cuda().take_faults();
  test::expect_error(
      ErrorCode::unavailable,
      "cuBLASLt has no algorithm for bf16[3,2]^T * bf16[3,4] = f16[2,4]; keep this layer", [&] {
        const auto x = kernels_->make_tensor(Shape{4, 3}, DataType::bf16);
        const auto w = kernels_->make_tensor(Shape{2, 3}, DataType::bf16);
        kernels_->linear_forward(x, w, TensorView(),
                                 kernels_->make_tensor(Shape{4, 2}, DataType::f16));
      });
}

TEST_F(FakeCudaTest, AProcessMayTakeLessThanThereIs) {
  auto& device = device_runtime(DeviceKind::fake);
  const auto before = device.memory_statistics(kFake);
  const auto tensor = kernels_->make_tensor(Shape{1000}, DataType::f32);
  const auto now = device.memory_statistics(kFake);
  EXPECT_EQ(now.allocated_bytes - before.allocated_bytes, 4096u);
  EXPECT_GE(now.most_allocated_bytes, now.allocated_bytes);
  EXPECT_GE(now.reserved_bytes, now.allocated_bytes);
  const size_t most = now.reserved_bytes + (size_t{64} << 20);
  device.limit_memory(kFake, most);
  const Shape large{(int64_t{200} << 20) / 4};
  test::expect_error(ErrorCode::out_of_memory,
                     "reserved (at most " + std::to_string(most) + "), and the largest",
                     [&] { static_cast<void>(kernels_->make_tensor(large, DataType::f32)); });
  device.limit_memory(kFake, size_t{1} << 40);
  static_cast<void>(kernels_->make_tensor(large, DataType::f32));
  EXPECT_GT(device.memory_statistics(kFake).reserved_bytes, most);
}

TEST_F(FakeCudaTest, OutOfMemoryNamesWhatIsWhose) {
  test::fake_cuda().set_memory_limit(64 << 20);
  test::expect_error(ErrorCode::out_of_memory, "cannot allocate 268435456 bytes on fake:0: ", [&] {
    static_cast<void>(kernels_->make_tensor(Shape{int64_t{1} << 26}, DataType::f32));
  });
}

TEST_F(FakeCudaTest, AStickyErrorIsToldAndEndsNothing) {
  const auto tensor = kernels_->upload(test::noise_tensor(Shape{4}, 1));
  static_cast<void>(on_host(tensor));
  test::fake_cuda().fail_for_good();
  test::expect_error(ErrorCode::unavailable, "an illegal memory access was met",
                     [&] { static_cast<void>(on_host(tensor)); });
  {
    const auto more = kernels_->make_tensor(Shape{4}, DataType::f32);  // and is freed again
  }
  test::fake_cuda().fail_for_good(false);
}

// The sequences are so long that the scores of all heads do not fit at the same time. There are
// more sequences than heads, and fewer.
TEST_F(FakeCudaTest, AttentionGoesGroupByGroup) {
  const auto cpu = make_layer_kernels({});
  for (const auto& [batch, heads] : {std::pair{1, 9}, {9, 2}}) {
    const AttentionOptions options{.heads = heads, .causal = true};
    const Shape all{batch, 1100, 3 * heads * 4}, half{batch, 1100, heads * 4},
        rows{batch, heads, 1100};
    const auto x = test::noise_tensor(all, 1), dy = test::noise_tensor(half, 2);
    const Tensor y(half, DataType::f32), logs(rows, DataType::f32), dx(all, DataType::f32);
    cpu->attention_forward(options, x, y, logs);
    cpu->attention_backward(options, x, y, logs, dy, dx);
    const auto there = kernels_->upload(x), above = kernels_->upload(dy),
               output = kernels_->make_tensor(half, DataType::f32),
               log_sums = kernels_->make_tensor(rows, DataType::f32),
               gradient = kernels_->make_tensor(all, DataType::f32);
    const auto before = test::fake_cuda().calls()["cublasLtMatmul"];
    kernels_->attention_forward(options, there, output, log_sums);
    const int groups = 2 * std::min(batch, heads);
    EXPECT_EQ(test::fake_cuda().calls()["cublasLtMatmul"] - before, 2 * groups);
    kernels_->attention_backward(options, there, output, log_sums, above, gradient);
    test::expect_close(on_host(output), test::values_of(y), "output");
    test::expect_close(on_host(log_sums), test::values_of(logs), "logarithms");
    test::expect_close(on_host(gradient), test::values_of(dx), "input gradient");
  }
}

TEST_F(FakeCudaTest, WhatIsElsewhereOrOfAnotherTypeIsRefused) {
  const auto host = test::noise_tensor(Shape{4, 3}, 1);
  const auto there = kernels_->upload(host);
  const auto output = kernels_->make_tensor(Shape{4, 3}, DataType::f32);
  test::expect_refused("activation got f32[4,3] on cpu; expected f32 on fake:0, row-major",
                       [&] { kernels_->activation_forward(Activation::relu, host, output); });
  const auto narrow = kernels_->make_tensor(Shape{4, 3}, DataType::bf16);
  test::expect_refused("activation got bf16[4,3] on fake:0; expected f32 on fake:0",
                       [&] { kernels_->activation_forward(Activation::relu, there, narrow); });
  test::expect_refused("pooling on a GPU got a kernel of 16; expected at most 15", [&] {
    const auto image = kernels_->make_tensor(Shape{1, 1, 16, 16}, DataType::f32);
    kernels_->pooling_forward({Pooling::average, 16, 16, 0}, image,
                              kernels_->make_tensor(Shape{1, 1, 1, 1}, DataType::f32),
                              TensorView(nullptr, Shape{0}, DataType::u8));
  });
  test::expect_error(ErrorCode::unavailable, "recurrent layers are not computed on a GPU", [&] {
    nn::Sequential model(1, 1, kFake);
    model.add("lstm", nn::lstm(3, 2));
    model.forward(test::noise_tensor(Shape{1, 2, 3}, 1));
  });
  nn::Sequential model(1, 1, kFake);
  model.add("fc", nn::linear(3, 2));
  test::expect_error(
      ErrorCode::unavailable,
      "LARS and LAMB step on parts of parameters on the cpu alone, but \"fc.weight\" is on fake:0; "
      "keep whole ones there",
      [&] {
        nn::Lars(model.parameters(), {}, {{}, [](std::span<double>) {}});
      });
}

TEST_F(FakeCudaTest, RanksOnDifferentDevicesAreTold) {
  test::run_threads(2, [](Communicator& comm) {
    nn::Sequential model(1, 1, comm.rank() == 0 ? Device{} : kFake);
    model.add("fc", nn::linear(3, 2, {.bias = false}));
    nn::Sgd sgd(model.parameters(), {.learning_rate = 0.1});
    test::expect_error(ErrorCode::mismatch,
                       "\"parameter fc.weight\": rank 0 sent memory on cpu, rank 1 sent memory on "
                       "fake:0; all ranks must submit the same device",
                       [&] { distributed(comm, sgd); });
  });
}

// One rank computes on the CPU, the other on the GPU. Their parameters stay equal to the bit,
// because optimizer steps are.
TEST_F(FakeCudaTest, ACpuAndAGpuTrainTogether) {
  test::run_threads(
      2,
      [](Communicator& comm) {
        nn::Sequential model(static_cast<uint64_t>(comm.rank()) + 1, 1,
                             comm.rank() == 0 ? Device{} : kFake);
        model.add("fc1", nn::linear(3, 8)).add("relu", nn::relu()).add("fc2", nn::linear(8, 2));
        nn::Sgd sgd(model.parameters(), {.learning_rate = 0.1, .momentum = 0.9});
        auto optimizer = distributed(comm, sgd);
        const Tensor labels(Shape{4}, DataType::i64);
        double first = 0, last = 0;
        for (int step = 0; step < 12; ++step) {
          model.zero_grad();
          const nn::CrossEntropy loss(model.forward(test::noise_tensor(Shape{4, 3}, 7)), labels);
          model.backward(loss);
          optimizer.step();
          last = loss.value();
          if (step == 0) first = last;
        }
        EXPECT_LT(last, first);
        EXPECT_GT(comm.statistics().replayed_buckets, 0u);
        for (const auto& parameter : model.parameters()) {
          const auto mine = on_host(parameter.value);
          const auto all = mine.clone();
          comm.broadcast(parameter.name, all, 0).wait();
          EXPECT_EQ(test::values_of(all), test::values_of(mine)) << parameter.name;
        }
      },
      [](Options& options) { options.mixed_devices = true; });
}

TEST_F(FakeCudaTest, RanksOfDifferentTypesTrainTogether) {
  test::run_threads(2, [](Communicator& comm) {
    nn::Sequential model(1, 1, kFake);
    if (comm.rank() == 1) model.add("narrow", nn::cast_to(DataType::bf16));
    model.add("fc", nn::linear(3, 2));
    nn::Sgd sgd(model.parameters(), {.learning_rate = 0.1});
    auto optimizer = distributed(comm, sgd);
    const Tensor labels(Shape{4}, DataType::i64);
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      const nn::CrossEntropy loss(model.forward(test::noise_tensor(Shape{4, 3}, 7)), labels);
      model.backward(loss);
      optimizer.step();
    }
    const auto weight = on_host(model.parameters()[0].value);
    const auto all = weight.clone();
    comm.broadcast("weight", all, 0).wait();
    EXPECT_EQ(test::values_of(all), test::values_of(weight));
  });
}

}  // namespace
}  // namespace tutti
