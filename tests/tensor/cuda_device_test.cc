// The promises of every DeviceRuntime, tested on the fake device, and on CUDA if there is a GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <numeric>

#include "tests/kernels/kernel_test.h"
#include "tests/support/expect_error.h"
#include "tests/tensor/fake_device.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/plugin.h"
#include "tutti/tensor/device_plugin.h"
#include "tutti/tensor/tensor.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

constexpr uint64_t kSeed = 20261121;

uint64_t load(const uint64_t* word) {
  return std::atomic_ref(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire);
}
void store(uint64_t* word, uint64_t value) {
  std::atomic_ref(*word).store(value, std::memory_order_release);
}

bool comes(const std::function<bool()>& condition) {
  for (const auto deadline = Deadline::after(30); !condition();)
    if (deadline.passed()) return false;
  return true;
}

bool comes(const uint64_t* word, uint64_t value) {
  return comes([&] { return load(word) == value; });
}

class DeviceRuntimeConformance : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (GetParam() == DeviceKind::fake) fake_ = std::make_unique<FakeDevice>();
    try {
      runtime_ = &device_runtime(GetParam());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable) throw;
      GTEST_SKIP() << error.what();
    }
    device_ = {GetParam(), 0};
    stream_ = runtime_->create_stream(device_);
  }
  void TearDown() override {
    if (runtime_ == nullptr) return;
    runtime_->synchronize(stream_);
    runtime_->destroy_stream(stream_);
    for (auto* word : words_) runtime_->give_back_word(word);
    for (auto* memory : host_) runtime_->free_host(memory);
    for (auto* memory : there_) runtime_->free(memory, device_);
  }

  uint64_t* word() { return words_.emplace_back(runtime_->take_word()); }
  // Return memory of the host and of the device that lives until the end of the test.
  template <class T = std::byte>
  std::span<T> host(int64_t count, T value = {}) {
    host_.push_back(runtime_->allocate_host(static_cast<size_t>(count) * sizeof(T)));
    std::span<T> memory(static_cast<T*>(host_.back()), static_cast<size_t>(count));
    std::fill(memory.begin(), memory.end(), value);
    return memory;
  }
  std::byte* there(size_t bytes) {
    there_.push_back(runtime_->allocate(bytes, device_));
    return static_cast<std::byte*>(there_.back());
  }
  // Returns a copy of the bytes on the device, `shift` bytes after an alignment boundary.
  std::byte* send(const Buffer& buffer, size_t shift = 0) {
    auto* memory = there(buffer.bytes() + shift) + shift;
    runtime_->copy(memory, buffer.data(), buffer.bytes(), stream_);
    runtime_->synchronize(stream_);
    return memory;
  }
  void fetch(Buffer& buffer, const std::byte* from) {
    runtime_->copy(buffer.data(), from, buffer.bytes(), stream_);
    runtime_->synchronize(stream_);
  }

  std::unique_ptr<FakeDevice> fake_;
  DeviceRuntime* runtime_ = nullptr;
  Device device_;
  StreamRef stream_;

 private:
  std::vector<uint64_t*> words_;
  std::vector<void*> host_, there_;
};

INSTANTIATE_TEST_SUITE_P(, DeviceRuntimeConformance,
                         testing::Values(DeviceKind::fake, DeviceKind::cuda), [](const auto& info) {
                           return info.param == DeviceKind::cuda ? "cuda" : "fake";
                         });

TEST_P(DeviceRuntimeConformance, CopiesThereAndBackInStreamOrder) {
  for (const int64_t count : {1, 3, 1000, 1'000'003}) {
    auto source = host<uint8_t>(count), target = host<uint8_t>(count);
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 7 + i / 256);
    auto* first = there(static_cast<size_t>(count));
    auto* second = there(static_cast<size_t>(count));
    runtime_->copy(first, source.data(), source.size(), stream_);
    runtime_->copy(second, first, source.size(), stream_);
    runtime_->copy(target.data(), second, source.size(), stream_);
    runtime_->synchronize(stream_);
    EXPECT_TRUE(std::equal(source.begin(), source.end(), target.begin())) << count;
  }
  runtime_->copy(nullptr, nullptr, 0, stream_);
}

TEST_P(DeviceRuntimeConformance, TheHostIsAheadOfAHeldStream) {
  auto source = host<int>(1000, 7), target = host<int>(1000, 1);
  auto* memory = there(4000);
  auto* gate = word();
  void* event = runtime_->create_event(device_);
  EXPECT_TRUE(runtime_->reached(event));  // never recorded
  std::atomic<bool> called = false;
  runtime_->wait_word(stream_, gate, 1);
  runtime_->copy(memory, source.data(), 4000, stream_);
  runtime_->copy(target.data(), memory, 4000, stream_);
  runtime_->host_function(stream_, [&] { called = true; });
  runtime_->record(event, stream_);
  EXPECT_FALSE(runtime_->reached(event));
  EXPECT_FALSE(called);
  EXPECT_THAT(target, Each(1));
  store(gate, 1);
  runtime_->synchronize(stream_);
  EXPECT_TRUE(runtime_->reached(event));
  EXPECT_TRUE(comes([&] { return called.load(); }));
  EXPECT_THAT(target, Each(7));
  runtime_->destroy_event(event);
}

TEST_P(DeviceRuntimeConformance, AnEventOrdersTwoStreams) {
  const auto other = runtime_->create_stream(device_);
  auto* gate = word();
  auto source = host<int>(5000, 9), target = host<int>(5000, 0);
  auto* memory = there(20000);
  void* event = runtime_->create_event(device_);
  runtime_->wait_word(stream_, gate, 1);
  runtime_->copy(memory, source.data(), 20000, stream_);
  runtime_->record(event, stream_);
  runtime_->wait_event(other, event);
  runtime_->copy(target.data(), memory, 20000, other);
  runtime_->destroy_event(event);  // while both streams may still need it
  store(gate, 1);
  runtime_->synchronize(other);
  EXPECT_THAT(target, Each(9));
  runtime_->destroy_stream(other);
}

TEST_P(DeviceRuntimeConformance, AWaitMeansTheLastRecordingBeforeIt) {
  const auto other = runtime_->create_stream(device_);
  auto* gate = word();
  void* event = runtime_->create_event(device_);
  runtime_->record(event, stream_);
  runtime_->wait_event(other, event);
  runtime_->wait_word(stream_, gate, 1);
  runtime_->record(event, stream_);  // held; the other stream does not wait for this recording
  runtime_->synchronize(other);
  EXPECT_FALSE(runtime_->reached(event));
  store(gate, 1);
  runtime_->synchronize(stream_);
  EXPECT_TRUE(runtime_->reached(event));
  runtime_->destroy_event(event);
  runtime_->destroy_stream(other);
}

TEST_P(DeviceRuntimeConformance, WordsPassBetweenStreamsAndTheHost) {
  const auto other = runtime_->create_stream(device_);
  auto *go = word(), *between = word(), *done = word();
  EXPECT_EQ(load(go), 0u);
  runtime_->wait_word(stream_, go, 5);  // waits for at least this value
  runtime_->write_word(stream_, between, uint64_t{1} << 40);
  runtime_->wait_word(other, between, uint64_t{1} << 40);
  runtime_->write_word(other, done, ~uint64_t{0} >> 1);
  store(go, 4);
  EXPECT_EQ(load(between), 0u);
  store(go, 6);
  EXPECT_TRUE(comes(done, ~uint64_t{0} >> 1));
  EXPECT_EQ(load(between), uint64_t{1} << 40);
  runtime_->synchronize(other);
  runtime_->destroy_stream(other);
}

// One command of CUDA cannot wait for this many words.
TEST_P(DeviceRuntimeConformance, AStreamWaitsForEachOfManyWords) {
  constexpr size_t kWords = 100;
  for (const size_t last : {size_t{0}, size_t{63}, size_t{64}, kWords - 1}) {
    std::vector<uint64_t*> words;
    std::vector<AwaitedWord> awaited;
    for (size_t i = 0; i < kWords; ++i) {
      words.push_back(word());
      awaited.push_back({words.back(), i + 1});
    }
    auto* done = word();
    runtime_->wait_words(stream_, awaited);
    runtime_->write_word(stream_, done, 1);
    for (size_t i = 0; i < kWords; ++i)
      if (i != last) store(words[i], i + 1);
    store(words[last], last);  // one too few
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(load(done), 0u) << "without word " << last;
    store(words[last], last + 1);
    EXPECT_TRUE(comes(done, 1));
    runtime_->synchronize(stream_);
  }
}

TEST_P(DeviceRuntimeConformance, WordsAreZeroWhoeverHadThemBefore) {
  for (int round = 0; round < 3; ++round) {
    std::vector<uint64_t*> many(600);
    for (auto*& one : many) one = runtime_->take_word();
    for (auto* one : many) EXPECT_EQ(load(one), 0u);
    for (auto* one : many) runtime_->write_word(stream_, one, 3);
    runtime_->synchronize(stream_);
    for (auto* one : many) EXPECT_EQ(load(one), 3u);
    for (auto* one : many) runtime_->give_back_word(one);
  }
}

TEST_P(DeviceRuntimeConformance, HostFunctionsKeepTheOrderAndMayGiveBack) {
  std::vector<int> order;
  for (int i = 0; i < 50; ++i) runtime_->host_function(stream_, [&, i] { order.push_back(i); });
  // The last resources of a Work: memory, an event, a word.
  auto memory = std::make_shared<Tensor>(Shape{1000}, DataType::f32, device_);
  auto* pinned = runtime_->allocate_host(100);
  auto* given = runtime_->take_word();
  std::atomic<bool> gave_back = false;
  runtime_->host_function(stream_,
                          [this, &gave_back, pinned, given, memory = std::move(memory)]() mutable {
                            memory.reset();
                            runtime_->free_host(pinned);
                            runtime_->give_back_word(given);
                            gave_back = true;
                          });
  ASSERT_TRUE(comes([&] { return gave_back.load(); }));
  std::vector<int> expected(50);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_P(DeviceRuntimeConformance, TensorsAreZeroAtBirthAndClone) {
  for (int round = 0; round < 3; ++round) {  // also with memory that was used before
    const Tensor tensor(Shape{1001}, DataType::f32, device_);
    auto seen = host<float>(1001, 5.0f), mine = host<float>(1001, 2.5f);
    runtime_->copy(seen.data(), tensor.data(), 4004, stream_);
    runtime_->synchronize(stream_);
    EXPECT_THAT(seen, Each(0.0f));
    runtime_->copy(tensor.data(), mine.data(), 4004, stream_);
    const Tensor ordered(
        TensorView(tensor.data(), tensor.shape(), tensor.dtype(), device_, stream_), nullptr);
    const Tensor copy = ordered.clone();
    runtime_->copy(seen.data(), copy.data(), 4004, stream_);
    runtime_->synchronize(stream_);
    EXPECT_THAT(seen, Each(2.5f));
  }
}

TEST_P(DeviceRuntimeConformance, TooMuchIsAnErrorThatNamesBytesAndDevice) {
  // The fake device allocates host memory, and sanitizers end a program that asks for too much of
  // it.
  const size_t bytes = device_.kind == DeviceKind::fake ? ~size_t{0} : size_t{1} << 50;
  const auto error =
      test::expect_error(ErrorCode::out_of_memory, "", [&] { runtime_->allocate(bytes, device_); });
  EXPECT_THAT(error.what(), StartsWith("cannot allocate " + std::to_string(bytes) + " bytes on " +
                                       to_string(device_)));
  // The runtime still works.
  auto* memory = there(100);
  EXPECT_NE(memory, nullptr);
}

// --- packing ------------------------------------------------------------------------------------

// Packing, and unpacking without a veto, give the same as on the host.
TEST_P(DeviceRuntimeConformance, PacksEveryPairAsTheReferenceDoes) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (const DataType from : kAllTypes)
    for (const DataType to : kAllTypes) {
      // All pieces of a bucket go in one call. Some are not aligned, and some have about the size
      // of a block's share.
      const Scale scale = random() % 2 ? Scale{} : Scale{0.37, 3};
      std::vector<Buffer> tensors;
      std::vector<Piece> here, there_pieces;
      int64_t end = 0;
      for (const int64_t count : {0, 1, 2, 3, 7, 16, 33, 255, 4095, 4096, 4097, 9001}) {
        const auto& tensor = tensors.emplace_back(from, count);
        fill_randomly(tensors.back(), random);
        end += static_cast<int64_t>(random() % 3);
        here.push_back({tensor.data(), from, end, count});
        there_pieces.push_back({send(tensor, random() % 17), from, end, count});
        end += count;
      }
      Buffer expected(to, end), got(to, end);
      pack(here, to, expected.data(), 0, end, scale);
      const DeviceBucket bucket{there(got.bytes()), to, end, 0, 0, false};
      runtime_->pack(bucket, there_pieces, scale, false, stream_);
      fetch(got, bucket.data);
      ASSERT_EQ(first_difference(to, got.data(), expected.data(), end), -1)
          << "pack " << to_string(from) << " to " << to_string(to);

      auto* done = word();
      runtime_->unpack(bucket, there_pieces, scale, {done, 7, 8, {}}, stream_);
      runtime_->synchronize(stream_);
      EXPECT_EQ(load(done), 7u);
      unpack(here, to, expected.data(), 0, end, scale);
      for (size_t i = 0; i < here.size(); ++i) {
        Buffer back(from, here[i].count);
        fetch(back, there_pieces[i].data);
        ASSERT_EQ(first_difference(from, back.data(), here[i].data, here[i].count), -1)
            << "unpack " << to_string(to) << " to " << to_string(from) << ", piece " << i;
      }
    }
}

TEST_P(DeviceRuntimeConformance, PacksMoreTensorsThanOneLaunchTakes) {
  constexpr int kTensors = 700;
  std::mt19937_64 random(kSeed);
  Buffer all(DataType::f32, kTensors * 10);
  fill_randomly(all, random);
  auto* tensors = send(all);
  std::vector<Piece> here, there_pieces;
  std::vector<uint64_t*> gates;
  for (int i = 0; i < kTensors; ++i) {
    here.push_back({all.data() + i * 40, DataType::f32, i * 11, 10});
    there_pieces.push_back({tensors + i * 40, DataType::f32, i * 11, 10});
    gates.push_back(word());
  }
  constexpr int64_t kCount = kTensors * 11 + 3;
  Buffer expected(DataType::bf16, kCount), got(DataType::bf16, kCount);
  pack(here, DataType::bf16, expected.data(), 0, kCount);
  const DeviceBucket bucket{there(got.bytes()), DataType::bf16, kCount, 0, 0, false};
  runtime_->pack(bucket, there_pieces, {}, false, stream_);
  fetch(got, bucket.data);
  EXPECT_EQ(first_difference(DataType::bf16, got.data(), expected.data(), kCount), -1);
  auto* done = word();
  runtime_->unpack(bucket, there_pieces, {}, {done, 1, 2, gates}, stream_);
  EXPECT_TRUE(comes(done, 1));
  for (const auto* gate : gates) ASSERT_EQ(load(gate), 1u);
}

// The word is written last, so whoever sees it sees everything else.
TEST_P(DeviceRuntimeConformance, AVetoInAnyTypeStopsAllButTheWord) {
  for (const DataType dtype : kAllTypes)
    for (const bool zero_vetoes : {false, true})
      for (const bool veto : {false, true}) {
        constexpr int64_t kCount = 100, kLanes = 40;
        Buffer values(dtype, kCount), before(dtype, kCount), after(dtype, kCount);
        std::memset(before.data(), 1, before.bytes());
        const DeviceBucket bucket{there(static_cast<size_t>((kCount + kLanes) * size_of(dtype))),
                                  dtype,
                                  kCount,
                                  kLanes,
                                  33,
                                  zero_vetoes};
        const Piece source{send(values), dtype, 0, kCount}, target{send(before), dtype, 0, kCount};
        auto *done = word(), *gate = word();
        runtime_->pack(bucket, {&source, 1}, {}, veto, stream_);
        runtime_->unpack(bucket, {&target, 1}, {}, {done, 11, 12, {&gate, 1}}, stream_);
        ASSERT_TRUE(comes(done, veto ? 12 : 11)) << to_string(dtype) << veto << zero_vetoes;
        EXPECT_EQ(load(gate), veto ? 0u : 1u);
        fetch(after, target.data);
        EXPECT_EQ(first_difference(dtype, after.data(), (veto ? before : values).data(), kCount),
                  -1);
      }
}

TEST_P(DeviceRuntimeConformance, WhatIsNoVerdictIsAVeto) {
  for (const float lane : {2.0f, -1.0f, std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN()}) {
    Buffer memory(DataType::f32, 2);
    store_element(memory.data(), 1, lane);
    const DeviceBucket bucket{send(memory), DataType::f32, 1, 1, 0, false};
    const Piece target{there(4), DataType::f32, 0, 1};
    auto* done = word();
    runtime_->unpack(bucket, {&target, 1}, {}, {done, 1, 2, {}}, stream_);
    EXPECT_TRUE(comes(done, 2)) << lane;
  }
}

TEST_P(DeviceRuntimeConformance, AnEmptyBucketStillAnswers) {
  auto* done = word();
  const DeviceBucket bucket{there(8), DataType::f32, 0, 2, 1, false};
  runtime_->pack(bucket, {}, {}, true, stream_);
  runtime_->unpack(bucket, {}, {}, {done, 1, 2, {}}, stream_);
  EXPECT_TRUE(comes(done, 2));
}

// --- the plugin ---------------------------------------------------------------------------------

std::string refusal(ErrorCode code, const std::string& file) {
  return test::refusal([&] { load_device_plugin(DeviceKind::cuda, file); }, code);
}

TEST(CudaPlugin, WhatIsNoneIsRefusedInOneLine) {
  EXPECT_THAT(refusal(ErrorCode::unavailable, "/no/such/folder/libtutti_device_cuda.so"),
              AllOf(HasSubstr("there is no /no/such/folder"), HasSubstr("where nvcc is")));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, library_folder() + "/libtutti.so"),
              HasSubstr("is not a device: it has no tutti_device_plugin"));
}

TEST(CudaPlugin, ATensorWithoutItIsAClearError) {
  const auto file = device_plugin_file(DeviceKind::cuda);
  if (std::filesystem::exists(file)) GTEST_SKIP() << file << " is there";
  EXPECT_THAT(
      [] {
        Tensor(Shape{1}, DataType::f32, {DeviceKind::cuda, 0});
      },
      testing::ThrowsMessage<Error>(HasSubstr("libtutti_device_cuda.so")));
  EXPECT_FALSE(has_device_runtime(DeviceKind::cuda));
}

// On any machine the plugin loads without a driver and reports what is missing.
TEST(CudaPlugin, LoadsWithoutADriverAndSaysWhyThereIsNoGpu) {
  const auto file = device_plugin_file(DeviceKind::cuda);
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "there is no " << file;
  const auto& plugin = load_device_plugin(DeviceKind::cuda, file);
  EXPECT_THAT(plugin.versions(), AllOf(HasSubstr("driver "), HasSubstr("runtime ")));
  try {
    const auto devices = plugin.devices();
    EXPECT_FALSE(devices.empty());
    EXPECT_EQ(&device_runtime(DeviceKind::cuda), &plugin.runtime());
    EXPECT_EQ(plugin.runtime().count(), static_cast<int>(devices.size()));
    for (const auto& device : devices) {
      EXPECT_THAT(device.architecture, HasSubstr("sm_"));
      EXPECT_GT(device.memory_bytes, 0);
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), HasSubstr("no GPU: "));
    EXPECT_FALSE(has_device_runtime(DeviceKind::cuda));
    EXPECT_THROW(device_runtime(DeviceKind::cuda), Error);
    EXPECT_THROW(plugin.runtime(), Error);
  }
}

}  // namespace
}  // namespace tutti
