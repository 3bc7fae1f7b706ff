#include "tests/tensor/fake_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/tensor/tensor.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

constexpr Device kFake{DeviceKind::fake, 0};

// Opens a wait_word() that holds a stream, as a host does it: by a store with release.
void open(uint64_t& gate) { std::atomic_ref(gate).store(1, std::memory_order_release); }

TEST(FakeDevice, IsTheRuntimeOfItsKindWhileItLives) {
  EXPECT_FALSE(has_device_runtime(DeviceKind::fake));
  {
    FakeDevice device;
    EXPECT_EQ(&device_runtime(DeviceKind::fake), &device);
    EXPECT_THROW(FakeDevice second, Error);
  }
  EXPECT_FALSE(has_device_runtime(DeviceKind::fake));
}

TEST(FakeDevice, WhoReadsTooEarlySeesOldBytes) {
  FakeDevice device;
  const StreamRef stream = device.create_stream(kFake);
  std::vector<int> source(1000, 7), target(1000, 1);
  uint64_t gate = 0;
  device.wait_word(stream, &gate, 1);
  device.copy(target.data(), source.data(), source.size() * sizeof(int), stream);
  EXPECT_THAT(target, testing::Each(1));
  open(gate);
  device.synchronize(stream);
  EXPECT_THAT(target, testing::Each(7));
  EXPECT_EQ(device.synchronize_count(), 1);
  device.destroy_stream(stream);
}

// A null stream is another stream on each device.
TEST(FakeDevice, ATensorWithoutAStreamIsWaitedForOnItsOwnDevice) {
  struct Recorder : FakeDevice {
    using FakeDevice::FakeDevice;
    void make_current(Device device) override { current.push_back(device); }
    std::vector<Device> current;
  } device({.devices = 2});
  const Device second{DeviceKind::fake, 1};
  const Tensor tensor(Shape{10}, DataType::f32, second);
  on_host(tensor);
  tensor.clone();
  EXPECT_THAT(device.current, testing::ElementsAre(second, second));
  const StreamRef stream = device.create_stream(second);
  on_host(Tensor(TensorView(tensor.data(), Shape{10}, DataType::f32, second, stream), nullptr));
  EXPECT_EQ(device.current.size(), 2u);
  device.destroy_stream(stream);
}

TEST(FakeDevice, CallsReturnBeforeTheirOperationsHappen) {
  FakeDevice device({.seed = 3, .least_delay = milliseconds(100), .most_delay = milliseconds(120)});
  void* event = device.create_event(kFake);
  EXPECT_TRUE(device.reached(event));  // never recorded
  const auto start = Clock::now();
  device.record(event, {});
  const bool reached_at_once = device.reached(event);
  if (Clock::now() - start < milliseconds(100)) {
    EXPECT_FALSE(reached_at_once);
  }
  device.synchronize({});
  EXPECT_TRUE(device.reached(event));
  EXPECT_GE(Clock::now() - start, milliseconds(100));
  device.destroy_event(event);
}

TEST(FakeDevice, AStreamKeepsItsOrder) {
  FakeDevice device({.seed = 4});
  const StreamRef stream = device.create_stream(kFake);
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) device.host_function(stream, [&order, i] { order.push_back(i); });
  device.synchronize(stream);
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(FakeDevice, TwoStreamsAreOutOfStepUnlessAnEventOrdersThem) {
  FakeDevice device;
  const StreamRef producer = device.create_stream(kFake), consumer = device.create_stream(kFake);
  void* event = device.create_event(kFake);
  uint64_t gate = 0;
  int value = 0, unordered = -1, ordered = -1;
  device.wait_word(producer, &gate, 1);
  device.host_function(producer, [&] { value = 42; });
  device.record(event, producer);

  device.host_function(consumer, [&] { unordered = value; });
  device.synchronize(consumer);
  EXPECT_EQ(unordered, 0);

  device.wait_event(consumer, event);
  device.host_function(consumer, [&] { ordered = value; });
  EXPECT_FALSE(device.reached(event));
  open(gate);
  device.synchronize(consumer);
  EXPECT_EQ(ordered, 42);
  EXPECT_TRUE(device.reached(event));
  device.destroy_event(event);
}

TEST(FakeDevice, AWaitMeansTheLastRecordingBeforeIt) {
  FakeDevice device;
  const StreamRef producer = device.create_stream(kFake), consumer = device.create_stream(kFake);
  void* event = device.create_event(kFake);
  uint64_t gate = 0;
  device.record(event, producer);
  device.wait_event(consumer, event);
  device.wait_word(producer, &gate, 1);
  device.record(event, producer);  // a later recording that is held; the consumer does not wait for
                                   // it
  device.synchronize(consumer);
  EXPECT_FALSE(device.reached(event));
  device.destroy_event(event);  // while the event is pending
  open(gate);
  device.synchronize(producer);
}

TEST(FakeDevice, WordsPassFromTheHostToAStreamAndBack) {
  FakeDevice device;
  const StreamRef stream = device.create_stream(kFake);
  uint64_t go = 0, done = 0;
  int seen = 0, given = 0;
  device.wait_word(stream, &go, 1);
  device.host_function(stream, [&] { seen = given; });
  device.write_word(stream, &done, 9);
  given = 5;
  open(go);
  const auto deadline = Deadline::after(30);
  while (std::atomic_ref(done).load(std::memory_order_acquire) != 9)
    ASSERT_FALSE(deadline.passed());
  EXPECT_EQ(seen, 5);
}

TEST(FakeDevice, DelaysDifferBetweenSeeds) {
  const auto run = [](uint64_t seed) {
    FakeDevice device({.seed = seed, .most_delay = milliseconds(20)});
    const auto start = Clock::now();
    for (int i = 0; i < 4; ++i) device.host_function({}, [] {});
    device.synchronize({});
    return Clock::now() - start;
  };
  // Of 20 seeds, at least one delays four operations hardly at all, and another one much.
  auto shortest = run(0), longest = shortest;
  for (uint64_t seed = 1; seed < 20; ++seed) {
    const auto took = run(seed);
    shortest = std::min(shortest, took);
    longest = std::max(longest, took);
  }
  EXPECT_GT(longest - shortest, milliseconds(10));
}

TEST(FakeDevice, MemoryIsFreshGarbageAndTooMuchIsAnError) {
  FakeDevice device;
  auto* bytes = static_cast<unsigned char*>(device.allocate(100, kFake));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes) % 64, 0u);
  EXPECT_EQ(bytes[0], 0xa5);
  EXPECT_EQ(bytes[99], 0xa5);
  device.free(bytes, kFake);
  const Device other{DeviceKind::fake, 1};
  EXPECT_EQ(test::refusal([&] { device.allocate(~size_t{0}, other); }, ErrorCode::out_of_memory),
            "cannot allocate 18446744073709551615 bytes on fake:1");
}

TEST(FakeDevice, AHostFunctionMustNotCallTheRuntime) {
  FakeDevice device;
  std::string message;
  device.host_function(
      {}, [&] { message = test::error_of([&] { device.host_function({}, [] {}); }).what(); });
  device.synchronize({});
  EXPECT_EQ(message, "a host function called the device runtime");
}

TEST(FakeDevice, ADestroyedStreamFinishesItsWork) {
  std::atomic<int> done = 0;
  {
    FakeDevice device;
    const StreamRef stream = device.create_stream(kFake);
    for (int i = 0; i < 10; ++i) device.host_function(stream, [&] { ++done; });
    device.destroy_stream(stream);
  }
  EXPECT_EQ(done, 10);
}

TEST(FakeDevice, ItsEndDoesNotWaitForeverForAHeldStream) {
  uint64_t gate = 0;
  bool ran = false;
  {
    FakeDevice device({.farewell = milliseconds(50)});
    device.wait_word({}, &gate, 1);
    device.host_function({}, [&] { ran = true; });
  }
  EXPECT_FALSE(ran);
}

TEST(FakeDevice, TensorsLiveOnItAndCloneInStreamOrder) {
  FakeDevice device;
  const StreamRef stream = device.create_stream(kFake);
  const Tensor tensor(Shape{4}, DataType::f32, kFake);
  EXPECT_THAT(tensor.span<float>(), testing::Each(0.0f));
  const Tensor on_stream(TensorView(tensor.data(), tensor.shape(), tensor.dtype(), kFake, stream),
                         nullptr);
  device.host_function(stream, [&] { tensor.as<float>()[2] = 3.0f; });
  const Tensor copy = on_stream.clone();
  EXPECT_EQ(copy.device(), kFake);
  EXPECT_THAT(copy.span<float>(), testing::ElementsAre(0, 0, 3, 0));
}

// Adds the buckets of two ranks by hand, like a library that knows no verdicts.
void add_buckets(FakeDevice& device, const DeviceBucket& own, const DeviceBucket& other) {
  device.host_function({}, [=] {
    for (int64_t i = 0; i < own.count + own.lanes; ++i)
      reinterpret_cast<float*>(own.data)[i] += reinterpret_cast<const float*>(other.data)[i];
  });
}

class Packing : public testing::Test {
 protected:
  DeviceBucket bucket(Tensor& memory, int64_t own_lane) {
    memory = Tensor(Shape{12}, DataType::f32, kFake);
    return {memory.data(), DataType::f32, 8, 4, own_lane, false};
  }
  FakeDevice device_;
  std::vector<double> first_{1, 2, 3}, second_{10, 20};
  std::vector<Piece> pieces_{{reinterpret_cast<std::byte*>(first_.data()), DataType::f64, 0, 3},
                             {reinterpret_cast<std::byte*>(second_.data()), DataType::f64, 4, 2}};
};

TEST_F(Packing, CastsScalesAndComesBack) {
  Tensor memory, other;
  const auto mine = bucket(memory, 0), theirs = bucket(other, 1);
  auto* word = device_.take_word();
  auto* gate = device_.take_word();
  device_.pack(mine, pieces_, {2.0, 1}, false, {});
  device_.pack(theirs, pieces_, {4.0, 1}, false, {});
  add_buckets(device_, mine, theirs);
  device_.unpack(mine, pieces_, {1.0, 2}, {word, 7, 8, {&gate, 1}}, {});
  device_.synchronize({});
  EXPECT_EQ(*word, 7u);
  EXPECT_EQ(*gate, 1u);
  EXPECT_THAT(first_, testing::ElementsAre(3, 6, 9));
  EXPECT_THAT(second_, testing::ElementsAre(30, 60));
  EXPECT_EQ(memory.span<float>()[3], 0);  // memory between the pieces
  device_.give_back_word(word);
  device_.give_back_word(gate);
}

TEST_F(Packing, OneVetoAndNothingIsWrittenButTheWord) {
  for (const int64_t lane : {0, 1}) {
    Tensor memory, other;
    const auto mine = bucket(memory, 0), theirs = bucket(other, lane);
    auto* word = device_.take_word();
    auto* gate = device_.take_word();
    device_.pack(mine, pieces_, {}, false, {});
    device_.pack(theirs, pieces_, {}, true, {});
    add_buckets(device_, mine, theirs);
    device_.unpack(mine, pieces_, {}, {word, 7, 8, {&gate, 1}}, {});
    device_.synchronize({});
    EXPECT_EQ(*word, 8u);
    EXPECT_EQ(*gate, 0u);
    EXPECT_THAT(first_, testing::ElementsAre(1, 2, 3));
    device_.give_back_word(word);
    device_.give_back_word(gate);
  }
}

TEST_F(Packing, WhereZeroVetoesTheOthersSayOne) {
  for (const bool veto : {false, true}) {
    Tensor memory;
    auto mine = bucket(memory, 2);
    mine.zero_vetoes = true;
    auto* word = device_.take_word();
    device_.pack(mine, pieces_, {}, veto, {});
    device_.unpack(mine, pieces_, {}, {word, 1, 2, {}}, {});
    device_.synchronize({});
    EXPECT_EQ(*word, veto ? 2u : 1u);
    device_.give_back_word(word);
  }
}

}  // namespace
}  // namespace tutti
