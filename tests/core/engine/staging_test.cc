// Operations on the memory of a device whose streams run late.

#include "tutti/core/engine/staging.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "tests/core/engine/late_streams.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/wait_until.h"
#include "tests/tensor/fake_device.h"
#include "tutti/backends/store.h"
#include "tutti/core/arena.h"
#include "tutti/core/engine/host_pool.h"

namespace tutti {
namespace {

using test::run_threads;

using test::fill;
using test::kFake;
using test::on_stream;

// A device may load or allocate something at the first operation. It must not find a stream that is
// held.
TEST(Staging, TheFirstOfANameIsWaitedForByTheHostToo) {
  FakeDevice device({.devices = 8});
  run_threads(2, [&](Communicator& comm) {
    const auto stream = device.create_stream(kFake), elsewhere = device.create_stream(kFake);
    auto* gate = device.take_word();
    const Tensor tensor(Shape{1000}, DataType::f32, kFake);
    auto first = comm.allreduce("x", on_stream(tensor, stream));
    first.wait_on(elsewhere);
    EXPECT_TRUE(first.done());
    device.wait_word(stream, gate, 1);  // the input of the second operation is not ready yet
    auto second = comm.allreduce("x", on_stream(tensor, stream));
    second.wait_on(elsewhere);
    EXPECT_FALSE(second.done());
    std::atomic_ref(*gate).store(1, std::memory_order_release);
    second.wait();
    device.synchronize(elsewhere);
    device.synchronize(stream);
    device.give_back_word(gate);
    device.destroy_stream(elsewhere);
    device.destroy_stream(stream);
  });
}

TEST(Staging, AFirstOperationThatFailsTellsItsErrorLater) {
  FakeDevice device({.devices = 8});
  run_threads(2, [&](Communicator& comm) {
    const auto stream = device.create_stream(kFake);
    const Tensor tensor(Shape{10 + comm.rank()}, DataType::f32, kFake);
    auto work = comm.allreduce("x", on_stream(tensor, stream));
    EXPECT_NO_THROW(work.wait_on(stream));
    EXPECT_THROW(work.wait(), Error);
    device.synchronize(stream);
    device.destroy_stream(stream);
  });
}

TEST(Staging, TheStreamWaitsAndTheHostDoesNot) {
  FakeDevice device({.devices = 8});
  run_threads(2, [&](Communicator& comm) {
    const auto stream = device.create_stream(kFake);
    const Tensor gradient(Shape{1000}, DataType::f32, kFake);
    for (int step = 0; step < 10; ++step) {
      fill(device, gradient, stream, static_cast<float>(comm.rank() + step));
      comm.barrier_blocking();  // the ranks share the device and so its counter
      const auto waits = device.synchronize_count();
      auto work = comm.allreduce("gradient", on_stream(gradient, stream));
      work.wait_on(stream);
      EXPECT_EQ(device.synchronize_count(), waits);
      comm.barrier_blocking();
      // The next command of the stream sees the average.
      std::vector<float> seen(1000);
      device.copy(seen.data(), gradient.data(), seen.size() * sizeof(float), stream);
      device.synchronize(stream);
      for (const float value : seen) ASSERT_EQ(value, static_cast<float>(step) + 0.5f);
      work.wait();
    }
    device.destroy_stream(stream);
  });
}

// Holds a stream before its second copy to the host, and counts the copies of other streams.
class GatedDevice final : public FakeDevice {
 public:
  GatedDevice() : FakeDevice({.seed = 5}), gate_(take_word()) {}
  ~GatedDevice() override { give_back_word(gate_); }
  void hold(StreamRef stream) { held_ = stream; }
  void open() { std::atomic_ref(*gate_).store(1, std::memory_order_release); }
  int copies_of_others() const { return others_; }

  void copy(void* target, const void* source, size_t bytes, StreamRef stream) override {
    if (stream != held_)
      ++others_;
    else if (++copies_ == 2)
      wait_word(stream, gate_, 1);
    FakeDevice::copy(target, source, bytes, stream);
  }

 private:
  uint64_t* const gate_;
  StreamRef held_;
  int copies_ = 0;
  std::atomic<int> others_{0};
};

constexpr int64_t kPieceBytes = 4096;
void small_pieces(Options& options) { options.partition_bytes = kPieceBytes; }

// The first piece is sent and comes back while the rest is not yet in host memory.
TEST(Staging, PiecesOverlap) {
  GatedDevice device;
  run_threads(
      1,
      [&](Communicator& comm) {
        const auto stream = device.create_stream(kFake);
        const Tensor gradient(Shape{4 * kPieceBytes / 4 - 7}, DataType::f32, kFake);
        fill(device, gradient, stream, 3);
        device.hold(stream);
        auto work = comm.allreduce("gradient", on_stream(gradient, stream),
                                   ReduceOptions{.op = ReduceOp::sum, .postscale = 2});
        EXPECT_TRUE(test::wait_until([&] { return device.copies_of_others() >= 1; }));
        EXPECT_FALSE(work.done());
        device.open();
        work.wait();
        EXPECT_EQ(device.copies_of_others(), 4);
        for (const float value : gradient.span<float>()) ASSERT_EQ(value, 6.0f);
        device.destroy_stream(stream);
      },
      small_pieces);
}

// Steps repeat until they are replayed. Then some steps lack a tensor, so that its bucket is vetoed
// and negotiated again. Each rank has an order of its own; the tensors are whole or cut into
// pieces.
TEST(Staging, PiecesAreReplayedAndVetoedBitForBit) {
  FakeDevice device({.seed = 6, .most_delay = std::chrono::microseconds(50), .devices = 8});
  run_threads(
      3,
      [&](Communicator& comm) {
        const auto stream = device.create_stream(kFake);
        const std::vector<int64_t> counts = {1, 1000, 5 * kPieceBytes / 4 + 1, 3 * kPieceBytes / 4};
        std::vector<Tensor> tensors;
        for (const int64_t count : counts) tensors.emplace_back(Shape{count}, DataType::f32, kFake);
        for (int step = 0; step < 30; ++step) {
          std::vector<size_t> order;
          for (size_t t = 0; t < counts.size(); ++t)
            order.push_back((t + static_cast<size_t>(comm.rank())) % counts.size());
          if (step >= 20 && step % 3 == 0) std::erase(order, size_t{2});
          std::vector<Work> works;
          std::vector<std::vector<float>> expected;
          for (const size_t t : order) {
            // The same sum in host memory gives the expected values.
            auto& here = expected.emplace_back(static_cast<size_t>(counts[t]));
            for (size_t i = 0; i < here.size(); ++i)
              here[i] = 1.0f / static_cast<float>(i + 1) + static_cast<float>(comm.rank() * step);
            device.host_function(stream, [tensor = tensors[t], here] {
              std::copy(here.begin(), here.end(), tensor.as<float>());
            });
            works.push_back(comm.allreduce("t" + std::to_string(t), on_stream(tensors[t], stream)));
          }
          for (auto& work : works) work.wait_on(stream);
          std::vector<std::vector<float>> seen;
          for (const size_t t : order) {
            auto& copy = seen.emplace_back(static_cast<size_t>(counts[t]));
            device.copy(copy.data(), tensors[t].data(), copy.size() * sizeof(float), stream);
          }
          device.synchronize(stream);
          for (auto& work : works) work.wait();
          for (size_t t = 0; t < counts.size(); ++t)
            for (size_t i = 0; i < order.size(); ++i) {
              if (order[i] != t) continue;
              comm.allreduce_blocking("host", expected[i]);
              ASSERT_EQ(seen[i], expected[i]) << "tensor " << t << " in step " << step;
            }
        }
        EXPECT_GT(comm.statistics().replayed_buckets, 0u);
        EXPECT_GT(comm.statistics().vetoed_buckets, 0u);
        device.destroy_stream(stream);
      },
      [](Options& options) {
        small_pieces(options);
        options.determinism = Determinism::rank_order;
      });
}

TEST(Staging, PiecesOfOtherShapesAreAMismatch) {
  FakeDevice device({.devices = 8});
  run_threads(
      2,
      [&](Communicator& comm) {
        const auto stream = device.create_stream(kFake);
        const int64_t count = (3 + 4 * comm.rank()) * kPieceBytes / 4;
        const Tensor tensor(Shape{count}, DataType::f32, kFake);
        fill(device, tensor, stream, 7);
        auto work = comm.allreduce("x", on_stream(tensor, stream));
        test::expect_error(ErrorCode::mismatch, "rank 0 sent f32[3072], rank 1 sent f32[7168]",
                           [&] { work.wait(); });
        work.wait_on(stream);
        device.synchronize(stream);
        for (const float value : tensor.span<float>()) ASSERT_EQ(value, 7.0f);
        device.destroy_stream(stream);
      },
      small_pieces);
}

TEST(Staging, HostMemoryIsUsedAgain) {
  class CountingDevice final : public FakeDevice {
   public:
    void* allocate_host(size_t bytes) override {
      ++allocations;
      return FakeDevice::allocate_host(bytes);
    }
    std::atomic<int> allocations{0};
  } device;
  run_threads(1, [&](Communicator& comm) {
    const Tensor tensor(Shape{5000}, DataType::f32, kFake);
    for (int step = 0; step < 20; ++step) {
      comm.allreduce("x", tensor).wait();
      comm.allgather("y", tensor).wait();
    }
  });
  EXPECT_LE(device.allocations, 8);
}

TEST(Staging, OutputsLiveOnTheDevice) {
  FakeDevice device({.devices = 8});
  run_threads(2, [&](Communicator& comm) {
    const auto stream = device.create_stream(kFake);
    const Tensor mine(Shape{comm.rank() + 1}, DataType::f32, kFake);
    fill(device, mine, stream, static_cast<float>(comm.rank()));
    const auto all = comm.allgather("rows", on_stream(mine, stream)).output();
    EXPECT_EQ(all.device(), kFake);
    ASSERT_EQ(all.count(), 3);
    EXPECT_EQ(all.as<float>()[0], 0.0f);
    EXPECT_EQ(all.as<float>()[2], 1.0f);
    device.destroy_stream(stream);
  });
}

// A device may refuse a copy at any time.
class CopyRefused : public FakeDevice {
 public:
  std::atomic<const void*> target = nullptr;
  void copy(void* to, const void* from, size_t bytes, StreamRef stream) override {
    if (to == target) throw Error(ErrorCode::unavailable, "the copy was refused");
    FakeDevice::copy(to, from, bytes, stream);
  }
};

TEST(Staging, AResultThatCannotBeCopiedBackFailsItsWork) {
  CopyRefused device;
  run_threads(2, [&](Communicator& comm) {
    const auto stream = device.create_stream(kFake);
    const Tensor tensor(Shape{4}, DataType::f32, kFake);
    fill(device, tensor, stream, 1);
    if (comm.rank() == 0) device.target = tensor.data();
    auto work = comm.allreduce("x", on_stream(tensor, stream));
    if (comm.rank() == 0)
      test::expect_error(ErrorCode::unavailable, "the copy was refused", [&] { work.wait(); });
    else
      work.wait();
    device.synchronize(stream);
    device.destroy_stream(stream);
  });
}

// A device that refuses one of the calls that bring a result back, but only on the library's
// stream. With `dropped` it ignores every command there, as a device that failed for good does.
class RefusesOne : public FakeDevice {
 public:
  enum class Call { copy, write_word, host_function, dropped };
  enum class How { error, no_memory };
  RefusesOne(Call call, How how) : FakeDevice({.devices = 8}), call_(call), how_(how) {}
  void refuse(const void* target, StreamRef of_user) {
    of_user_ = of_user;
    target_ = target;
  }
  /// Called after the last Work, so that destructors may use the device.
  void recover() { target_ = nullptr; }

  void copy(void* to, const void* from, size_t bytes, StreamRef stream) override {
    if (to == target_) refuse_if(Call::copy);
    if (drops(stream)) return;
    FakeDevice::copy(to, from, bytes, stream);
  }
  void write_word(StreamRef stream, uint64_t* word, uint64_t value) override {
    if (is_meant(stream)) refuse_if(Call::write_word);
    if (drops(stream)) return;
    FakeDevice::write_word(stream, word, value);
  }
  void host_function(StreamRef stream, std::function<void()> function) override {
    if (is_meant(stream)) refuse_if(Call::host_function);
    if (drops(stream)) return;
    FakeDevice::host_function(stream, std::move(function));
  }

 private:
  bool is_meant(StreamRef stream) const { return target_ != nullptr && stream != of_user_; }
  bool drops(StreamRef stream) const { return call_ == Call::dropped && is_meant(stream); }
  void refuse_if(Call call) const {
    if (call != call_) return;
    if (how_ == How::no_memory) throw std::bad_alloc();
    throw Error(ErrorCode::unavailable, "the device refused");
  }
  const Call call_;
  const How how_;
  std::atomic<const void*> target_ = nullptr;
  StreamRef of_user_;
};

// A waiting thread, a callback and a waiting stream are all released, whatever fails on the way
// back.
TEST(Staging, AWorkEndsWhateverFailsOnItsWayBack) {
  using Call = RefusesOne::Call;
  using How = RefusesOne::How;
  for (const auto call : {Call::copy, Call::write_word, Call::host_function, Call::dropped})
    for (const auto how : {How::error, How::no_memory}) {
      SCOPED_TRACE(fmt::format("call {}, {}", static_cast<int>(call),
                               how == How::error ? "an error" : "no memory"));
      RefusesOne device(call, how);
      run_threads(1, [&](Communicator& comm) {
        const auto stream = device.create_stream(kFake);
        const Tensor tensor(Shape{1000}, DataType::f32, kFake);
        fill(device, tensor, stream, 1);
        comm.allreduce("x", on_stream(tensor, stream)).wait();
        device.refuse(tensor.data(), stream);
        std::atomic<bool> called{false};
        auto work = comm.allreduce("x", on_stream(tensor, stream));
        work.then([&](const std::exception_ptr& error) { called = error != nullptr; });
        if (call == Call::dropped)
          test::expect_error(ErrorCode::unavailable, "\"x\": its device never reported its end",
                             [&] { work.wait(Deadline::after(20)); });
        else if (how == How::no_memory)
          test::expect_error(ErrorCode::out_of_memory, "\"x\": this process ran out of memory on",
                             [&] { work.wait(Deadline::after(20)); });
        else
          test::expect_error(ErrorCode::unavailable, "the device refused",
                             [&] { work.wait(Deadline::after(20)); });
        EXPECT_TRUE(test::wait_until([&] { return called.load(); }, 20));
        device.recover();
        work.wait_on(stream);
        device.synchronize(stream);
        device.destroy_stream(stream);
        test::still_works(comm);
      });
    }
}

// A step asks for the same sizes again and again. Each size should get the same block as before.
TEST(HostPool, ALargeBlockIsKeptForWhatIsAsLarge) {
  const auto pool = std::make_shared<HostPool>(device_runtime(DeviceKind::cpu));
  void* const large = pool->take(1 << 20).get();
  const auto small = pool->take(4096);
  EXPECT_NE(small.get(), large);
  EXPECT_EQ(pool->take(600 << 10).get(), large);
  EXPECT_EQ(pool->take(1 << 20).get(), large);
}

class CountsHostMemory final : public FakeDevice {
 public:
  void* allocate_host(size_t bytes) override {
    void* const memory = FakeDevice::allocate_host(bytes);
    sizes_.emplace(memory, bytes);
    held += bytes;
    ++allocations;
    return memory;
  }
  void free_host(void* memory) noexcept override {
    held -= sizes_.extract(memory).mapped();
    FakeDevice::free_host(memory);
  }
  size_t held = 0;
  int allocations = 0;

 private:
  std::map<void*, size_t> sizes_;
};

TEST(HostPool, HoldsAtMostTwiceWhatWasInUseAtOnce) {
  CountsHostMemory device;
  const auto pool = std::make_shared<HostPool>(device);
  for (size_t bytes = 4096; bytes <= (400 << 10); bytes += 4096) {
    pool->take(bytes);  // larger than all blocks before; given back immediately
    ASSERT_LE(device.held, 2 * bytes);
  }
}

TEST(HostPool, ASteadyStepAllocatesNothing) {
  CountsHostMemory device;
  const auto pool = std::make_shared<HostPool>(device);
  for (int step = 0; step < 20; ++step) {
    std::vector<std::shared_ptr<void>> used;
    for (size_t i = 1; i <= 30; ++i) used.push_back(pool->take(i * 10'000));
    EXPECT_EQ(device.allocations, 30) << "step " << step;
  }
}

TEST(Staging, ADeviceThatFailedDoesNotEndTheProcess) {
  FakeDevice device({.devices = 8});
  std::mutex mutex;
  std::string log;
  run_threads(
      1,
      [&](Communicator& comm) {
        const Tensor gradient(Shape{100}, DataType::f32, kFake);
        comm.allreduce("gradient", on_stream(gradient, {})).wait();
        device.fail_for_good();
      },
      [&](Options& options) {
        options.log = [&](LogLevel, std::string_view line) {
          const std::lock_guard lock(mutex);
          log += line;
        };
      });
  EXPECT_NE(log.find("an illegal memory access"), log.npos) << log;
}

// Data that its stream delivers after the end of the communicator is refused, and no reference to
// the engine is kept. Otherwise a lost step would keep sockets and shared memory open.
TEST(Staging, WhatIsRefusedIsNotKept) {
  GatedDevice device;
  const auto stream = device.create_stream(kFake);
  auto options = Options::thread_rank(0, 1, make_memory_store());
  auto seen = std::make_shared<int>(0);
  options.observer = [seen](std::string_view) {};  // lives as long as the engine
  auto comm = Communicator::create(options);
  options = {};
  const Tensor gradient(Shape{100}, DataType::f32, kFake);
  uint64_t* const gate = device.take_word();
  device.wait_word(stream, gate, 1);
  auto work = comm->allreduce("gradient", on_stream(gradient, stream));
  comm.reset();
  std::atomic_ref(*gate).store(1, std::memory_order_release);
  EXPECT_THROW(work.wait(), Error);
  work = Work();
  EXPECT_TRUE(test::wait_until([&] { return seen.use_count() <= 1; }, 60)) << "the engine lives on";
  device.synchronize(stream);
  device.give_back_word(gate);
  device.destroy_stream(stream);
}

}  // namespace
}  // namespace tutti
