// Gradients that live in an arena on the device are reduced in place, by threads and by processes.

#include <gmock/gmock.h>

#include <atomic>

#include "tests/backends/conformance/user_stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/core/arena.h"

namespace tutti::test {
namespace {

// Counts the kernels that pack buckets: a gradient in the arena needs none.
class CountingDevice final : public FakeDevice {
 public:
  void pack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale, bool veto,
            StreamRef stream) override {
    packs.fetch_add(1);
    FakeDevice::pack(bucket, pieces, scale, veto, stream);
  }
  std::atomic<int> packs{0};
};

// Odd sizes, so that there are gaps between arrays. The second array gets its own block.
std::vector<GradientArena::Array> arrays() {
  return {{.name = "w", .shape = {33, 3}, .device = kFake},
          {.name = "big", .shape = {100'001}, .device = kFake},
          {.name = "b", .shape = {7}, .device = kFake}};
}

void train(Communicator& comm, CountingDevice& device) {
  GradientArena arena(comm, arrays());
  UserStream user;
  comm.barrier("all have one").wait();
  const int before = device.packs.load();
  for (int step = 0; step < 12; ++step) {
    for (const auto& array : arrays()) {
      const auto view = arena[array.name];
      EXPECT_EQ(view.device(), kFake);
      device.host_function(user.get(), [view, step, &comm] {
        std::fill_n(view.as<float>(), view.count(), static_cast<float>(comm.rank() + step));
      });
      arena.ready(array.name, user.get());
    }
    arena.wait();
    const float mean = static_cast<float>(step) + static_cast<float>(comm.size() - 1) / 2;
    for (const auto& array : arrays())
      for (const float value :
           std::span(arena[array.name].as<float>(), static_cast<size_t>(array.shape.count())))
        ASSERT_EQ(value, mean) << array.name;
  }
  comm.barrier("all have").wait();
  EXPECT_EQ(device.packs.load(), before) << "a gradient was copied before it was reduced";
  EXPECT_GT(comm.statistics().replayed_buckets, 0u);
}

// Processes run first: they are forked, and no threads may exist before that.
TEST(PeerArena, OfProcesses) {
  run_processes(
      3, [](Communicator& comm) { train(comm, static_cast<CountingDevice&>(device())); },
      [](Options& options) {
        static CountingDevice counting;
        options.backend = "peer";
      });
}

TEST(PeerArena, OfThreads) {
  CountingDevice counting;
  run_threads(
      3, [&](Communicator& comm) { train(comm, counting); },
      [](Options& options) { options.backend = "peer"; });
}

TEST(PeerArena, WhatItCannotDoIsRefused) {
  FakeDevice fake;
  run_threads(
      1,
      [](Communicator& comm) {
        expect_refused("make an arena for each device", [&] {
          GradientArena(comm, {{.name = "here", .shape = {1}, .device = kFake},
                               {.name = "there", .shape = {1}}});
        });
        expect_refused("where an arena can only reduce gradients", [&] {
          GradientArena(comm,
                        {{.name = "one", .shape = {1}, .device = kFake, .may_be_left_out = true}});
        });
      },
      [](Options& options) { options.backend = "peer"; });
  run_threads(
      1,
      [](Communicator& comm) {
        expect_refused("with backend memory an arena is in host memory", [&] {
          GradientArena(comm, {{.name = "one", .shape = {1}, .device = kFake}});
        });
      },
      [](Options& options) { options.backend = "memory"; });
}

}  // namespace
}  // namespace tutti::test
