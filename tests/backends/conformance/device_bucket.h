#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "tests/backends/conformance/backend_conformance.h"
#include "tests/backends/conformance/user_stream.h"

// Buckets on the fake device, for tests of backends that run there.

namespace tutti::test {

/// Drives all ranks until `over` is true; fails if that takes too long.
inline void drive(Backends& ends, const std::function<bool()>& over, double seconds = 20) {
  const auto deadline = Deadline::after(seconds);
  while (!over() && !deadline.passed())
    for (auto& end : ends) end->progress();
  ASSERT_TRUE(over());
}

/// A stream of the user that waits until let_go(), and the event recorded after that wait.
class HeldStream {
 public:
  HeldStream() {
    device().wait_word(stream_, go_, 1);
    device().record(ready_, stream_);
  }
  HeldStream(const HeldStream&) = delete;
  ~HeldStream() {
    device().destroy_event(ready_);
    device().destroy_stream(stream_);
    device().give_back_word(go_);
  }
  void* ready() const { return ready_; }
  /// Any thread may call this.
  void let_go() { std::atomic_ref(*go_).store(1, std::memory_order_release); }
  void synchronize() { device().synchronize(stream_); }

 private:
  const StreamRef stream_ = device().create_stream(kFake);
  uint64_t* const go_ = device().take_word();
  void* const ready_ = device().create_event(kFake);
};

/// One rank's allreduce of device memory, started in a queue. A bucket with a `when_ready` event
/// uses memory that is not the backend's, so it may outlive the backend.
struct Bucket {
  explicit Bucket(Backend& end, uint64_t tag, int64_t wanted = 1000, uint32_t verdict = 0,
                  void* when_ready = nullptr, int queue = 1)
      : count(wanted), tensor(Shape{wanted}, DataType::f32, kFake), ready(when_ready) {
    std::fill_n(tensor.as<float>(), count, 1.0f);
    const auto bytes = static_cast<size_t>(count * 4 + kLaneBytes);
    region = ready == nullptr ? end.allocate(bytes, kFake) : make_heap_region(bytes);
    device.ready = {&ready, 1};
    piece = {tensor.data(), DataType::f32, 0, count};
    device.inputs = device.outputs = {&piece, 1};
    gate = device_runtime(DeviceKind::fake).take_word();
    device.gates = {&gate, 1};
    start(end, tag, verdict, queue);
  }
  // May be called again for the same memory.
  void start(Backend& end, uint64_t tag, uint32_t verdict = 0, int queue = 1) {
    state = OperationState::pending;
    Launch launch;
    launch.tag = tag;
    launch.queue = queue;
    launch.verdict = verdict;
    launch.device = &device;
    operation = end.start({CollectiveKind::allreduce,
                           DataType::f32,
                           ReduceOp::sum,
                           0,
                           region->data(),
                           region->data(),
                           {&count, 1},
                           {},
                           {}},
                          launch);
  }
  Bucket(const Bucket&) = delete;
  ~Bucket() {
    operation.reset();
    device_runtime(DeviceKind::fake).give_back_word(gate);
  }
  bool is_over() {
    if (state == OperationState::pending) state = operation->advance();
    return state != OperationState::pending;
  }

  int64_t count;
  Tensor tensor;
  void* ready;
  std::unique_ptr<Region> region;
  Piece piece;
  uint64_t* gate = nullptr;
  DeviceLaunch device;
  OperationPtr operation;
  OperationState state = OperationState::pending;
};
using Buckets = std::vector<std::unique_ptr<Bucket>>;

/// Drives all ends until all of these are over.
inline void drive(Backends& ends, const Buckets& buckets) {
  drive(ends, [&] {
    return std::all_of(buckets.begin(), buckets.end(), [](auto& one) { return one->is_over(); });
  });
}
/// Drives all ends for so long.
inline void drive_for(Backends& ends, double seconds) {
  const auto until = Deadline::after(seconds);
  while (!until.passed())
    for (auto& end : ends) end->progress();
}

inline void expect_all(const Buckets& buckets, OperationState state, float value) {
  for (const auto& bucket : buckets) {
    EXPECT_EQ(bucket->state, state);
    EXPECT_EQ(*bucket->gate, state == OperationState::done ? 1u : 0u);
    EXPECT_THAT(bucket->tensor.span<float>(), testing::Each(value));
  }
}

}  // namespace tutti::test
