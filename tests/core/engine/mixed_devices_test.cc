// Ranks on several devices, and one rank with tensors on several devices.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/core/engine/late_streams.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/core/arena.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using test::fill;
using test::kFake;
using test::on_stream;
using test::run_threads;

TEST(MixedDevices, MemoryOfTwoKindsIsAMismatch) {
  FakeDevice device({.devices = 8});
  run_threads(2, [&](Communicator& comm) {
    const auto stream = device.create_stream(kFake);
    const Tensor there(Shape{4}, DataType::f32, kFake);
    fill(device, there, stream, 1);
    std::vector<float> here(4, 1);
    auto work = comm.rank() == 0 ? comm.allreduce("x", on_stream(there, stream))
                                 : comm.allreduce("x", here);
    EXPECT_THAT(test::error_of([&] { work.wait(); }).what(),
                testing::HasSubstr("rank 0 sent memory on fake:0"));
    // The failed operation does not hold the stream.
    if (comm.rank() == 0) {
      work.wait_on(stream);
      device.synchronize(stream);
    }
    comm.allreduce("x", here, ReduceOp::sum).wait();
    EXPECT_EQ(here[0], 2.0f);
    device.destroy_stream(stream);
  });
}

// One rank may compute on several devices, as Horovod's ranks may on several GPUs.
TEST(MixedDevices, SeveralDevicesOfARank) {
  FakeDevice device({.devices = 8});
  run_threads(2, [&](Communicator& comm) {
    const Device both[] = {{DeviceKind::fake, 0}, {DeviceKind::fake, 1}};
    std::vector<StreamRef> streams;
    std::vector<Tensor> tensors;
    for (const auto& place : both) {
      streams.push_back(device.create_stream(place));
      tensors.emplace_back(Shape{1000}, DataType::f32, place);
    }
    for (int step = 0; step < 6; ++step) {
      std::vector<Work> works;
      for (size_t i = 0; i < 2; ++i) {
        fill(device, tensors[i], streams[i], static_cast<float>(10 * i) + comm.rank());
        works.push_back(comm.allreduce(
            fmt::format("on {}", i),
            TensorView(tensors[i].data(), Shape{1000}, DataType::f32, both[i], streams[i]),
            ReduceOp::sum));
      }
      for (size_t i = 0; i < 2; ++i) {
        works[i].wait();
        ASSERT_EQ(tensors[i].as<float>()[999], static_cast<float>(20 * i + 1)) << both[i].index;
      }
    }
    for (const auto stream : streams) device.destroy_stream(stream);
  });
}

// One rank uses host memory and another a device. Every form of the operations runs until its plan
// is replayed.
TEST(MixedDevices, RanksMixDevicesWhereTheOptionSaysSo) {
  FakeDevice device({.devices = 8});
  for (const std::string backend : {"memory", "tcp", "peer"}) {
    SCOPED_TRACE(backend);
    run_threads(
        3,
        [&](Communicator& comm) {
          const Device own = comm.rank() == 1 ? kFake : Device{};
          const auto rank = static_cast<float>(comm.rank());
          const Tensor sum({5000}, DataType::f32, own), mine({6}, DataType::f32, own);
          const Tensor small({2}, DataType::f32, own), there({6}, DataType::f32, own);
          const std::vector<NamedTensor> group = {{"a", small}, {"b", there}};
          const auto expect_all = [](const Tensor& tensor, float value) {
            for (const float element : tensor.span<float>()) ASSERT_EQ(element, value);
          };
          for (int step = 0; step < 12; ++step) {
            const auto number = static_cast<float>(step);
            std::fill_n(sum.as<float>(), sum.count(), rank + number);
            comm.allreduce("sum", sum, ReduceOp::sum).wait();
            expect_all(sum, 3 + 3 * number);
            std::fill_n(small.as<float>(), small.count(), rank);
            std::fill_n(there.as<float>(), there.count(), 2 * rank);
            comm.grouped_allreduce("group", group, {.op = ReduceOp::max}).wait();
            expect_all(small, 2);
            expect_all(there, 4);
            for (const int root : {0, 1}) {
              std::fill_n(mine.as<float>(), mine.count(), rank + number);
              comm.broadcast("from" + std::to_string(root), mine, root).wait();
              expect_all(mine, static_cast<float>(root) + number);
            }
            std::fill_n(mine.as<float>(), mine.count(), rank + number);
            auto gathered = comm.allgather("gathered", mine);
            gathered.wait();
            EXPECT_EQ(gathered.output().device(), own);
            EXPECT_EQ(gathered.output().as<float>()[7], 1 + number);
            auto exchanged = comm.alltoall("exchanged", mine);
            exchanged.wait();
            EXPECT_EQ(exchanged.output().device(), own);
            EXPECT_EQ(exchanged.output().as<float>()[2], 1 + number);
            if (comm.rank() == 0) comm.send("pair", mine, 1).wait();
            if (comm.rank() == 1) comm.recv("pair", there, 0).wait();
            if (comm.rank() == 1) expect_all(there, number);
            std::fill_n(small.as<float>(), small.count(), rank);
            comm.allreduce_blocking("driven", small, ReduceOp::sum);
            expect_all(small, 3);
            comm.barrier_blocking();
          }
          EXPECT_GT(comm.statistics().replayed_buckets, 0u);
        },
        [&](Options& options) {
          options.backend = backend;
          options.mixed_devices = true;
          options.partition_bytes = 8000;
        });
  }
}

// All ranks learn of TUTTI_MIXED_DEVICES even if only some set it (settings_at_work_test). No arena
// lies on a device then, because the peers could not reach its memory.
TEST(MixedDevices, WhoMixesDevicesHasNoArenaOnOne) {
  FakeDevice device({.devices = 8});
  run_threads(
      1,
      [](Communicator& comm) {
        test::expect_refused(
            "with TUTTI_MIXED_DEVICES an arena is in host memory; use backend peer or nccl",
            [&] { GradientArena(comm, {{.name = "one", .shape = {1}, .device = kFake}}); });
      },
      [](Options& options) {
        options.backend = "peer";
        options.mixed_devices = true;
      });
}

TEST(MixedDevices, AGroupLivesOnOneDevice) {
  FakeDevice device({.devices = 8});
  run_threads(1, [&](Communicator& comm) {
    const Tensor there(Shape{4}, DataType::f32, kFake);
    std::vector<float> here(4, 1);
    const NamedTensor tensors[] = {{"a", here}, {"b", there}};
    EXPECT_STREQ(test::expect_error(ErrorCode::invalid_argument, "",
                                    [&] { return comm.grouped_allreduce("g", tensors); })
                     .what(),
                 "group \"g\": \"a\" lives on cpu, \"b\" on fake:0; the tensors of a group live "
                 "on one device");
  });
}

}  // namespace
}  // namespace tutti
