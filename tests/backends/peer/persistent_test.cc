// Allreduces that are launched without the engine, on the fake device. Ranks are threads that share
// a device, or processes with one device each.

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/backends/conformance/user_stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/wait_until.h"
#include "tests/tensor/fake_flags.h"
#include "tutti/base/deadline.h"
#include "tutti/core/calls/persistent_offer.h"
#include "tutti/core/persistent_allreduce.h"
#include "tutti/kernels/convert.h"

namespace tutti::test {
namespace {

// Separate tensors, so that there are gaps between them in which nothing may be written.
std::vector<Tensor> tensors_of(DataType dtype, const std::vector<int64_t>& counts) {
  std::vector<Tensor> all;
  all.reserve(counts.size());
  for (const auto count : counts) all.emplace_back(Shape{count}, dtype, kFake);
  return all;
}

std::vector<TensorView> views(const std::vector<Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}

// Small whole numbers, which every dtype holds and whose sum does not depend on the order. A byte
// holds the sum of 8 ranks.
double value_of(int rank, int round, int64_t i) {
  return static_cast<double>((i + 3 * rank + round) % 7);
}

void fill(const Tensor& tensor, int rank, int round) {
  std::vector<double> values(static_cast<size_t>(tensor.count()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = value_of(rank, round, static_cast<int64_t>(i));
  cast(DataType::f64, reinterpret_cast<const std::byte*>(values.data()), tensor.dtype(),
       tensor.data(), tensor.count());
}

void expect_sums(const Tensor& tensor, int size, int round, double factor = 1) {
  std::vector<double> got(static_cast<size_t>(tensor.count()));
  cast(tensor.dtype(), tensor.data(), DataType::f64, reinterpret_cast<std::byte*>(got.data()),
       tensor.count());
  int64_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    double sum = 0;
    for (int rank = 0; rank < size; ++rank) sum += value_of(rank, round, static_cast<int64_t>(i));
    wrong += got[i] != sum * factor;
  }
  EXPECT_EQ(wrong, 0) << to_string(tensor.dtype()) << " of " << tensor.count() << " in round "
                      << round;
}

// Launches rounds one after another on a stream; the host does not wait between them.
void reduce(Communicator& comm, DataType dtype, const std::vector<int64_t>& counts,
            std::string_view variant, int rounds) {
  const auto name = std::string(to_string(dtype)) + " " + std::to_string(counts[0]);
  const auto tensors = tensors_of(dtype, counts);
  UserStream user;
  {
    PersistentAllreduce allreduce(comm, name, views(tensors), {.op = ReduceOp::sum});
    EXPECT_EQ(allreduce.variant(), variant) << name;
    for (int round = 0; round < rounds; ++round) {
      device().host_function(user.get(), [&, round] {
        for (const auto& tensor : tensors) fill(tensor, comm.rank(), round);
      });
      allreduce.launch(user.get());
      device().host_function(user.get(), [&, round] {
        for (const auto& tensor : tensors) expect_sums(tensor, comm.size(), round);
      });
    }
    device().synchronize(user.get());
    allreduce.check();
  }
}

void run_round(PersistentAllreduce& allreduce, UserStream& user) {
  allreduce.launch(user.get());
  device().synchronize(user.get());
}

void every_kind(Communicator& comm) {
  reduce(comm, DataType::f32, {1}, "packets", 9);
  reduce(comm, DataType::f32, {1001, 3}, "packets", 9);
  reduce(comm, DataType::f32, {20'001, 1, 77}, "two_shot", 5);
  reduce(comm, DataType::f32, {70'001}, "two_shot", 5);
  for (const auto dtype :
       {DataType::f64, DataType::f16, DataType::bf16, DataType::i8, DataType::u8, DataType::i16,
        DataType::u16, DataType::i32, DataType::u32, DataType::i64, DataType::u64})
    reduce(comm, dtype, {333}, "one_shot", 3);
  reduce(comm, DataType::bf16, {17'001, 5}, "two_shot", 3);
  reduce(comm, DataType::i64, {5'001}, "two_shot", 3);
}

void on_their_own_devices(Options& options) {
  static FakeDevice own({.identity = "bus " + std::to_string(options.rank)});
  options.backend = "shm";
}

// Processes run first: they are forked, and no threads may exist before that.
TEST(Persistent, SumsOfProcessesWithADeviceEach) {
  run_processes(3, every_kind, on_their_own_devices);
}

TEST(Persistent, ProcessesThatShareADeviceAreToldWhatToDo) {
  run_processes(
      2,
      [](Communicator& comm) {
        const Tensor tensor(Shape{3}, DataType::f32, kFake);
        expect_error(ErrorCode::unavailable, "processes that share the GPU at bus 1",
                     [&] { PersistentAllreduce(comm, "shared", tensor); });
        comm.barrier("and go on").wait();
      },
      [](Options& options) {
        static FakeDevice one({.identity = "bus 1"});
        options.backend = "shm";
      });
}

// A process that dies sends nothing; the other ranks' kernels must not wait a minute for it.
TEST(Persistent, ARankThatDiesEndsTheRoundAndIsNamed) {
  run_processes(
      3,
      [](Communicator& comm) {
        const Tensor tensor(Shape{100}, DataType::f32, kFake);
        UserStream user;
        PersistentAllreduce allreduce(comm, "dies", tensor);
        run_round(allreduce, user);
        comm.barrier("one round").wait();
        if (comm.rank() == 1) ::raise(SIGKILL);
        const auto begin = Clock::now();
        run_round(allreduce, user);
        EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
        expect_error(ErrorCode::peer_lost, "rank 1", [&] {
          const auto until = Deadline::after(10);
          while (!until.passed()) allreduce.check();
        });
      },
      on_their_own_devices, 60, 1);
}

// Counts allocations of device memory. Once `gives_up` is set, every round ends as if a peer had
// not come.
class GivesUp final : public FakeDevice {
 public:
  using FakeDevice::FakeDevice;
  void* allocate(size_t bytes, Device device) override {
    ++held;
    return FakeDevice::allocate(bytes, device);
  }
  void free(void* memory, Device device) noexcept override {
    --held;
    FakeDevice::free(memory, device);
  }
  void* allocate_shared(size_t bytes, Device device, DeviceHandle& handle) override {
    ++held;
    return FakeDevice::allocate_shared(bytes, device, handle);
  }
  void free_shared(void* memory) noexcept override {
    --held;
    FakeDevice::free_shared(memory);
  }
  void reduce_by_flags(const DeviceFlags& flags, StreamRef stream) override {
    if (!gives_up) return FakeDevice::reduce_by_flags(flags, stream);
    host_function(stream, [record = flags.record] {
      std::atomic_ref(record->is_set).store(1, std::memory_order_release);
    });
  }
  std::atomic<int> held{0};
  std::atomic<bool> gives_up{false};
};

// After a failed round, a peer's kernel may still use the memory of that round, so it is kept. All
// other memory is freed.
void expect_memory_is_kept_after_a_failure(Communicator& comm, GivesUp& fake) {
  const Tensor tensor(Shape{100}, DataType::f32, kFake);
  UserStream user;
  const int before = fake.held;
  const auto round = [&](const char* name) {
    PersistentAllreduce allreduce(comm, name, tensor);
    EXPECT_GT(fake.held, before);
    run_round(allreduce, user);
    comm.barrier("all have").wait();
  };
  round("good");
  EXPECT_EQ(fake.held, before);
  fake.gives_up = true;
  round("failed");
  EXPECT_EQ(fake.held, before + 1) << "the board and what peers load lie in one piece";
}

TEST(Persistent, MemoryOfAFailedRoundOfProcessesIsKept) {
  static GivesUp* own = nullptr;
  run_processes(
      2, [](Communicator& comm) { expect_memory_is_kept_after_a_failure(comm, *own); },
      [](Options& options) {
        static GivesUp fake({.identity = "bus " + std::to_string(options.rank)});
        own = &fake;
        options.backend = "shm";
      });
}

TEST(Persistent, MemoryOfAFailedRoundIsKept) {
  GivesUp fake;
  run_threads(
      1, [&](Communicator& comm) { expect_memory_is_kept_after_a_failure(comm, fake); },
      over("memory"));
}

TEST(Persistent, SumsOfThreadsThatShareADevice) {
  FakeDevice fake;
  for (const int size : {1, 2, 5, 8}) run_threads(size, every_kind, over("memory"));
}

// All blocks of ranks that share a GPU must fit there together, however many other devices the
// process sees.
TEST(Persistent, RanksThatShareOneOfSeveralDevicesShareItsBlocks) {
  FakeDevice fake({.devices = 4});
  run_threads(
      4, [](Communicator& comm) { reduce(comm, DataType::f32, {500'001}, "two_shot", 2); },
      over("memory"));
  EXPECT_GT(last_fake_flag_blocks(), 1);
  EXPECT_LE(last_fake_flag_blocks(), kMostFlagBlocks / 4);
}

TEST(Persistent, OptionsAreThoseOfAnAllreduce) {
  FakeDevice fake;
  run_threads(
      4,
      [](Communicator& comm) {
        UserStream user;
        const Tensor tensor(Shape{50'000}, DataType::f32, kFake);
        for (const auto& [options, factor] :
             {std::pair{ReduceOptions{}, 0.25},
              {{.op = ReduceOp::sum, .prescale = 0.5, .postscale = 4}, 2.0},
              {{.op = ReduceOp::average, .wire = DataType::bf16}, 0.25},
              {{.op = ReduceOp::average, .postscale = 2}, 0.5}}) {
          fill(tensor, comm.rank(), 4);
          PersistentAllreduce allreduce(comm, "scaled", tensor, options);
          run_round(allreduce, user);
          expect_sums(tensor, comm.size(), 4, factor);
        }
        fill(tensor, comm.rank(), 0);
        PersistentAllreduce largest(comm, "largest", tensor, {.op = ReduceOp::max});
        run_round(largest, user);
        for (int64_t i = 0; i < tensor.count(); ++i) {
          double expected = 0;
          for (int rank = 0; rank < 4; ++rank) expected = std::max(expected, value_of(rank, 0, i));
          ASSERT_EQ(tensor.as<float>()[i], expected) << i;
        }
      },
      over("memory"));
}

// The inputs are not whole numbers: the sums must equal those of backend peer in every bit.
TEST(Persistent, SumsAreThoseOfPeerToTheBit) {
  FakeDevice fake;
  run_threads(
      4,
      [](Communicator& comm) {
        UserStream user;
        for (const int64_t count : {1'000, 60'000}) {
          const Tensor one(Shape{count}, DataType::f32, kFake),
              other(Shape{count}, DataType::f32, kFake);
          std::mt19937 random(static_cast<unsigned>(comm.rank()));
          for (int64_t i = 0; i < count; ++i)
            one.as<float>()[i] = other.as<float>()[i] = std::normal_distribution<float>()(random);
          PersistentAllreduce allreduce(comm, "bits", one);
          run_round(allreduce, user);
          comm.allreduce("by the engine", other).wait();
          EXPECT_EQ(std::memcmp(one.data(), other.data(), static_cast<size_t>(one.bytes())), 0)
              << count;
        }
      },
      [](Options& options) {
        options.backend = "peer";
        options.determinism = Determinism::rank_order;
      });
}

TEST(Persistent, WhatRanksDisagreeOnAllHear) {
  FakeDevice fake;
  run_threads(
      3,
      [](Communicator& comm) {
        const Tensor tensor(Shape{comm.rank() == 2 ? 4 : 3}, DataType::f32, kFake);
        expect_error(
            ErrorCode::mismatch,
            "rank 0 gave average as f32, prescale 1, postscale 1: f32[3]; rank 2 gave average "
            "as f32, prescale 1, postscale 1: f32[4]",
            [&] { PersistentAllreduce(comm, "shapes", tensor); });
        const Tensor same(Shape{3}, DataType::f32, kFake);
        expect_error(ErrorCode::mismatch, "rank 1 gave sum as f32", [&] {
          PersistentAllreduce(comm, "ops", same,
                              {.op = comm.rank() == 1 ? ReduceOp::sum : ReduceOp::average});
        });
        UserStream user;
        PersistentAllreduce good(comm, "goes on", same);
        run_round(good, user);
      },
      over("memory"));
}

// One rank cannot allocate memory; its peers must not wait for it.
class SmallDevice final : public FakeDevice {
 public:
  void* allocate(size_t bytes, Device device) override {
    if (bytes > (size_t{1} << 20) && taken_.fetch_add(1) == 0)
      throw Error(ErrorCode::out_of_memory, "there is no such piece of memory");
    return FakeDevice::allocate(bytes, device);
  }

 private:
  std::atomic<int> taken_{0};
};

TEST(Persistent, WhatOneRankLacksAllHear) {
  SmallDevice small;
  std::atomic<int> told{0};
  run_threads(
      2,
      [&](Communicator& comm) {
        // Two tensors are packed, which needs an allocation.
        const auto tensors = tensors_of(DataType::f32, {200'000, 200'000});
        expect_error(ErrorCode::out_of_memory, "there is no such piece of memory",
                     [&] { PersistentAllreduce(comm, "large", views(tensors)); });
        ++told;
      },
      over("memory"));
  EXPECT_EQ(told, 2);
}

TEST(Persistent, WhatItCannotReduceIsRefusedHere) {
  FakeDevice fake;
  run_threads(
      1,
      [](Communicator& comm) {
        const Tensor host(Shape{3}, DataType::f32), one(Shape{3}, DataType::f32, kFake),
            narrow(Shape{3}, DataType::f16, kFake), none(Shape{0}, DataType::f32, kFake),
            raw(Shape{3}, DataType::raw, kFake);
        const auto make = [&](std::vector<TensorView> tensors, const ReduceOptions& options = {}) {
          return [&comm, tensors, options] { PersistentAllreduce(comm, "bad", tensors, options); };
        };
        expect_refused("needs at least one tensor", make({}));
        expect_refused("tensor 0 of a persistent allreduce lives on cpu", make({host}));
        expect_refused("tensor 1 of a persistent allreduce lives on cpu", make({one, host}));
        expect_refused("tensor 1 of a persistent allreduce is f16[3], but this one reduces f32",
                       make({one, narrow}));
        expect_refused("tensor 0 of a persistent allreduce is f32[0]", make({none}));
        expect_refused("sum", make({raw}, {.op = ReduceOp::sum}));
        const int64_t strides[] = {1, 3};
        expect_refused(
            "f32[3,3] with strides",
            make(
                {TensorView(one.data(), Shape{3, 3}, DataType::f32, kFake).with_strides(strides)}));
      },
      over("memory"));
}

TEST(Persistent, ADamagedOfferNamesItsRank) {
  PersistentOffer offer;
  offer.what = "f32[3]";
  const auto whole = encode_offer(offer);
  EXPECT_EQ(decode_offer(3, whole).what, "f32[3]");
  const auto expect_damaged = [](const std::vector<std::byte>& bytes) {
    expect_error(ErrorCode::corrupt_data,
                 "what rank 3 offered for a persistent allreduce is damaged",
                 [&] { decode_offer(3, bytes); });
  };
  expect_damaged({});
  expect_damaged({whole.begin(), whole.end() - 1});
  auto longer = whole;
  longer.push_back({});
  expect_damaged(longer);
  offer.device = -1;
  expect_damaged(encode_offer(offer));
}

void expect_unavailable(int size, const char* why, const Tune& tune) {
  FakeDevice fake;
  run_threads(
      size,
      [&](Communicator& comm) {
        const Tensor tensor(Shape{3}, DataType::f32, kFake);
        expect_error(ErrorCode::unavailable, why,
                     [&] { PersistentAllreduce(comm, "refused", tensor); });
      },
      tune);
}

TEST(Persistent, MoreRanksThanAHostHasGpusAreRefused) {
  expect_unavailable(9, "it takes 8 ranks at most, and there are 9", over("memory"));
}

TEST(Persistent, RanksOfTwoHostsAreRefused) {
  expect_unavailable(2, "another host or PID namespace", [](Options& options) {
    options.backend = "tcp";
    options.host = "host " + std::to_string(options.rank);
  });
}

TEST(Persistent, ARankThatDoesNotComeIsNamed) {
  FakeDevice fake;
  std::atomic<int> told{0};
  run_threads(
      3,
      [&](Communicator& comm) {
        UserStream user;
        const Tensor tensor(Shape{100}, DataType::f32, kFake);
        PersistentAllreduce allreduce(comm, "late", tensor);
        for (int round = 0; round < (comm.rank() == 1 ? 3 : 4); ++round) run_round(allreduce, user);
        if (comm.rank() != 1) {
          expect_error(ErrorCode::timeout, "in round 4 a kernel of rank",
                       [&] { allreduce.check(); });
          expect_error(ErrorCode::timeout, "nothing is reduced any more",
                       [&] { allreduce.launch(user.get()); });
        }
        ++told;
        EXPECT_TRUE(wait_until([&] { return told == 3; }));
      },
      [](Options& options) {
        options.backend = "memory";
        options.operation_timeout = 5;
        options.stall_warning = 30;
      });
}

// A captured graph knows nothing of Communicators: it launches the same kernels again on a stream.
class ReplayingDevice : public FakeDevice {
 public:
  void reduce_by_flags(const DeviceFlags& flags, StreamRef stream) override {
    {
      const std::lock_guard lock(mutex_);
      captured_[flags.rank] = flags;
    }
    FakeDevice::reduce_by_flags(flags, stream);
  }
  void replay(int rank, StreamRef stream) {
    const std::lock_guard lock(mutex_);
    FakeDevice::reduce_by_flags(captured_.at(rank), stream);
  }

 private:
  std::mutex mutex_;
  std::map<int, DeviceFlags> captured_;
};

TEST(Persistent, AGraphThatIsReplayedAfterCloseEndsAtOnce) {
  ReplayingDevice fake;
  std::atomic<int> ended{0};
  run_threads(
      2,
      [&](Communicator& comm) {
        UserStream user;
        const Tensor tensor(Shape{100}, DataType::f32, kFake);
        PersistentAllreduce allreduce(comm, "replayed", tensor);
        run_round(allreduce, user);
        comm.barrier("both have").wait();
        comm.close();
        // The replayed kernel must not wait for the other rank, which may replay later or never.
        const auto begin = Clock::now();
        if (comm.rank() == 0) fake.replay(0, user.get());
        device().synchronize(user.get());
        EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), 10);
        expect_error(ErrorCode::closed, "its Communicator is closed", [&] { allreduce.check(); });
        // The kernel writes into memory of the other rank's object, so that object must still
        // exist.
        ++ended;
        EXPECT_TRUE(wait_until([&] { return ended == 2; }));
      },
      over("memory"));
}

TEST(Persistent, AfterCloseItSaysSo) {
  FakeDevice fake;
  run_threads(
      2,
      [](Communicator& comm) {
        UserStream user;
        const Tensor tensor(Shape{100}, DataType::f32, kFake);
        PersistentAllreduce allreduce(comm, "closed", tensor);
        run_round(allreduce, user);
        comm.barrier("both have").wait();
        comm.close();
        expect_error(ErrorCode::closed, "its Communicator is closed",
                     [&] { allreduce.launch(user.get()); });
      },
      over("memory"));
}

}  // namespace
}  // namespace tutti::test
