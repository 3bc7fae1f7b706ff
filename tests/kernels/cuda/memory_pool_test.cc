// The memory pool of a GPU over a simulated driver made of counters. A stream counts its queued and
// its finished commands. An event stores the clock of its stream at the time of recording.

#include "tutti/kernels/cuda/device/memory_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <random>
#include <thread>

#include "tutti/base/error.h"

namespace tutti::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;

class FakeMemory final : public MemorySource {
 public:
  static constexpr size_t kStreams = 4;
  // For each stream, the number of its commands that are ordered before the owner of the clock.
  using Clock = std::array<uint64_t, kStreams>;

  explicit FakeMemory(size_t capacity) : capacity_(capacity) {}
  ~FakeMemory() override {
    EXPECT_EQ(segments_.size(), 0u);
    EXPECT_EQ(events_, 0);
  }

  static StreamRef stream(size_t index) { return {reinterpret_cast<void*>(index + 1)}; }
  static size_t index_of(StreamRef stream) { return reinterpret_cast<size_t>(stream.native) - 1; }

  void* reserve(size_t bytes) override {
    if (on_reserve) on_reserve();
    const std::lock_guard lock(mutex_);
    ++reservations;
    if (bytes > capacity_ - used_) return nullptr;
    used_ += bytes;
    // The addresses are never used; some segments are neighbours.
    auto* memory = reinterpret_cast<std::byte*>(next_);
    next_ += bytes + (reservations % 3 == 0 ? 4096 : 0);
    segments_[memory] = bytes;
    return memory;
  }
  void release(void* memory) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto at = segments_.find(static_cast<std::byte*>(memory));
    ASSERT_NE(at, segments_.end());
    used_ -= at->second;
    segments_.erase(at);
  }
  void* create_event() override {
    const std::lock_guard lock(mutex_);
    ++events_;
    return new Clock{};
  }
  void destroy_event(void* event) noexcept override {
    const std::lock_guard lock(mutex_);
    --events_;
    delete static_cast<Clock*>(event);
  }
  bool record(void* event, StreamRef stream) noexcept override {
    const std::lock_guard lock(mutex_);
    if (has_failed) return false;
    *static_cast<Clock*>(event) = clocks_[index_of(stream)];
    return true;
  }
  bool reached(void* event) noexcept override {
    const std::lock_guard lock(mutex_);
    return is_done(*static_cast<Clock*>(event));
  }
  void wait(StreamRef stream, void* event) override {
    const std::lock_guard lock(mutex_);
    if (has_failed) throw Error(ErrorCode::io, "the device has failed");
    auto& clock = clocks_[index_of(stream)];
    for (size_t i = 0; i < kStreams; ++i)
      clock[i] = std::max(clock[i], (*static_cast<Clock*>(event))[i]);
  }

  // Queues a command on the stream and returns its number.
  uint64_t work(size_t stream) {
    const std::lock_guard lock(mutex_);
    return ++clocks_[stream][stream];
  }
  // Finishes all commands that are queued on a stream.
  void catch_up(size_t stream) {
    const std::lock_guard lock(mutex_);
    done_[stream] = std::max(done_[stream], clocks_[stream][stream]);
  }
  // Returns whether that command of stream `user` is done, or ordered before the next command of
  // `stream`.
  bool is_behind(size_t stream, size_t user, uint64_t command) {
    const std::lock_guard lock(mutex_);
    return done_[user] >= command || clocks_[stream][user] >= command;
  }
  bool is_done(size_t user, uint64_t command) {
    const std::lock_guard lock(mutex_);
    return done_[user] >= command;
  }
  bool has(std::byte* memory, size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto at = segments_.upper_bound(memory);
    return at != segments_.begin() && (--at, memory + bytes <= at->first + at->second);
  }

  std::function<void()> on_reserve;
  std::atomic<bool> has_failed = false;
  int reservations = 0;

 private:
  bool is_done(const Clock& clock) const {
    for (size_t i = 0; i < kStreams; ++i)
      if (done_[i] < clock[i]) return false;
    return true;
  }

  std::mutex mutex_;
  const size_t capacity_;
  size_t used_ = 0;
  uintptr_t next_ = uintptr_t{1} << 40;
  std::map<std::byte*, size_t> segments_;
  int events_ = 0;
  std::array<Clock, kStreams> clocks_{};
  Clock done_{};
};

struct MemoryPoolTest : testing::Test {
  FakeMemory driver{64 * kMiB};
  MemoryPool pool{driver, "cuda:0"};
  const StreamRef a = FakeMemory::stream(0), b = FakeMemory::stream(1);
};

TEST_F(MemoryPoolTest, AStreamHasItsOwnMemoryAgainAtOnce) {
  void* first = pool.allocate(1000, a);
  driver.work(0);
  pool.free(first);
  EXPECT_EQ(pool.allocate(1024, a), first);
  EXPECT_EQ(pool.statistics().device_waits, 0u);
  EXPECT_EQ(driver.reservations, 1);
}

TEST_F(MemoryPoolTest, AnotherStreamHasItOnlyWhenItsOwnHasCome) {
  void* first = pool.allocate(30 * kMiB, a);
  driver.work(0);
  pool.free(first);
  void* second = pool.allocate(30 * kMiB, b);
  EXPECT_NE(second, first);
  driver.work(1);
  pool.free(second);
  driver.catch_up(0);
  EXPECT_EQ(pool.allocate(30 * kMiB, b), second);  // first its own block
  EXPECT_EQ(pool.allocate(30 * kMiB, b), first);
  EXPECT_EQ(pool.statistics().device_waits, 0u);
}

TEST_F(MemoryPoolTest, BeforeItFailsAStreamWaitsForAnothersMemory) {
  void* first = pool.allocate(40 * kMiB, a);
  const auto command = driver.work(0);
  pool.free(first);
  EXPECT_EQ(pool.allocate(40 * kMiB, b), first);
  EXPECT_EQ(pool.statistics().device_waits, 1u);
  EXPECT_FALSE(driver.is_done(0, command));
  EXPECT_TRUE(driver.is_behind(1, 0, command));
}

TEST_F(MemoryPoolTest, MemoryOfSeveralStreamsIsFreeWhenAllHaveCome) {
  void* first = pool.allocate(40 * kMiB, a);
  pool.use(first, b);
  pool.use(first, b);
  driver.work(0);
  driver.work(1);
  pool.free(first);
  driver.catch_up(0);
  EXPECT_THROW(pool.allocate_idle(40 * kMiB), Error);
  driver.catch_up(1);
  EXPECT_EQ(pool.allocate_idle(40 * kMiB), first);
}

TEST_F(MemoryPoolTest, NeighboursBecomeOneBlockAgain) {
  std::vector<void*> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(pool.allocate(5 * kMiB, a));
  EXPECT_EQ(driver.reservations, 1);
  for (const size_t i : {1u, 3u, 0u, 2u}) {
    driver.work(0);
    pool.free(parts[i]);
  }
  EXPECT_EQ(pool.statistics().largest_free_bytes, 20 * kMiB);
  // The last part is still in use by the stream.
  EXPECT_EQ(pool.release_free(), 0u);
  driver.catch_up(0);
  EXPECT_EQ(pool.release_free(), 20 * kMiB);
  EXPECT_EQ(pool.statistics().reserved_bytes, 0u);
}

TEST_F(MemoryPoolTest, SegmentsGoBackBeforeItFails) {
  pool.free(pool.allocate_idle(25 * kMiB));
  pool.free(pool.allocate_idle(30 * kMiB));
  EXPECT_NE(pool.allocate_idle(60 * kMiB), nullptr);
  EXPECT_EQ(pool.statistics().reserved_bytes, 60 * kMiB);
}

TEST_F(MemoryPoolTest, NearTheEndSegmentsAreNoLargerThanTheRequest) {
  pool.allocate_idle(60 * kMiB);
  EXPECT_NE(pool.allocate_idle(3 * kMiB), nullptr);
  EXPECT_EQ(pool.statistics().reserved_bytes, 64 * kMiB);
}

TEST_F(MemoryPoolTest, ALimitHoldsFromNowOn) {
  pool.allocate_idle(20 * kMiB);
  pool.limit(24 * kMiB);
  EXPECT_THROW(pool.allocate_idle(5 * kMiB), Error);
  EXPECT_NE(pool.allocate_idle(4 * kMiB), nullptr);
  pool.limit(4 * kMiB);  // less than is reserved
  EXPECT_THROW(pool.allocate_idle(1), Error);
  EXPECT_EQ(pool.statistics().reserved_bytes, 24 * kMiB);
  pool.limit(40 * kMiB);
  EXPECT_NE(pool.allocate_idle(16 * kMiB), nullptr);
}

TEST_F(MemoryPoolTest, TheErrorSaysWhereTheMemoryIs) {
  MemoryPool small(driver, "cuda:3", 22 * kMiB);
  small.allocate(7 * kMiB, a);
  small.free(small.allocate(2 * kMiB, b));
  for (const size_t bytes : {14 * kMiB, ~size_t{0}}) try {
      small.allocate(bytes, a);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
      EXPECT_EQ(std::string(error.what()),
                "cannot allocate " + std::to_string(bytes) +
                    " bytes on cuda:3: 7340032 bytes are allocated, 20971520 reserved (at most "
                    "23068672), and the largest free block has 13631488; free tensors of the "
                    "device, or use smaller ones");
    }
  EXPECT_NE(small.allocate(13 * kMiB, a), nullptr);
}

TEST_F(MemoryPoolTest, WhatADeviceThatFailedUsesIsGivenToNoOne) {
  void* first = pool.allocate(40 * kMiB, a);
  driver.has_failed = true;
  pool.free(first);
  EXPECT_THROW(pool.allocate(40 * kMiB, a), Error);
  driver.has_failed = false;
  EXPECT_THROW(pool.allocate(40 * kMiB, a), Error);
}

TEST_F(MemoryPoolTest, AnErrorWhileWaitingLeavesTheMemoryFree) {
  void* first = pool.allocate(40 * kMiB, a);
  driver.work(0);
  pool.free(first);
  driver.has_failed = true;
  EXPECT_THROW(pool.allocate(40 * kMiB, b), Error);
  EXPECT_EQ(pool.allocate(40 * kMiB, a), first);
  driver.has_failed = false;
}

// CUDA may make a caller of its allocator wait for a stream that another thread must release.
TEST_F(MemoryPoolTest, OthersFreeWhileTheDriverIsAsked) {
  void* first = pool.allocate(kMiB, a);
  driver.on_reserve = [&] {
    auto freed = std::async(std::launch::async, [&] { pool.free(first); });
    EXPECT_EQ(freed.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  };
  EXPECT_NE(pool.allocate(12 * kMiB, a), nullptr);
  driver.on_reserve = nullptr;
}

TEST_F(MemoryPoolTest, NothingAtAllIsABlockToo) {
  void* first = pool.allocate(0, a);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(pool.allocate(0, a), first);
  pool.free(nullptr);
  EXPECT_EQ(pool.statistics().allocated_bytes, 1024u);
}

// --- compared with a model -----------------------------------------------------------------------

// Knows who owns which bytes, and which commands of which streams used them last.
class Model {
 public:
  explicit Model(FakeMemory& driver) : driver_(driver) {}

  // With `stream` of kStreams or more, no stream may still use the memory.
  void taken(void* memory, size_t bytes, size_t stream) {
    const std::lock_guard lock(mutex_);
    auto* begin = static_cast<std::byte*>(memory);
    auto* end = begin + std::max<size_t>(bytes, 1);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(begin) % 256, 0u);
    ASSERT_TRUE(driver_.has(begin, bytes));
    for (const auto& [other, other_end] : owned_)
      ASSERT_TRUE(end <= other || other_end <= begin) << "two have the same memory";
    owned_[begin] = end;
    for (const auto& use : used_) {
      if (end <= use.begin || use.end <= begin) continue;
      ASSERT_TRUE(stream < FakeMemory::kStreams ? driver_.is_behind(stream, use.stream, use.command)
                                                : driver_.is_done(use.stream, use.command))
          << "stream " << use.stream << " may still use what stream " << stream << " gets";
    }
  }
  void given_back(void* memory, std::vector<std::pair<size_t, uint64_t>> uses) {
    const std::lock_guard lock(mutex_);
    auto* begin = static_cast<std::byte*>(memory);
    std::erase_if(used_, [&](const auto& use) { return driver_.is_done(use.stream, use.command); });
    for (const auto& [stream, command] : uses)
      used_.push_back({begin, owned_.at(begin), stream, command});
    owned_.erase(begin);
  }

 private:
  struct Used {
    std::byte *begin, *end;
    size_t stream;
    uint64_t command;
  };
  FakeMemory& driver_;
  std::mutex mutex_;
  std::map<std::byte*, std::byte*> owned_;
  std::vector<Used> used_;
};

// Allocates and frees at random for `rounds` rounds, then frees everything.
void live(MemoryPool& pool, FakeMemory& driver, Model& model, uint64_t seed, int rounds,
          int* refused) {
  std::mt19937_64 random(seed);
  struct Owned {
    void* memory;
    std::vector<size_t> streams;
  };
  std::vector<Owned> owned;
  const auto give_back = [&](size_t i) {
    std::vector<std::pair<size_t, uint64_t>> uses;
    for (const size_t stream : owned[i].streams) uses.emplace_back(stream, driver.work(stream));
    model.given_back(owned[i].memory, uses);
    pool.free(owned[i].memory);
    owned[i] = owned.back();
    owned.pop_back();
  };
  for (int round = 0; round < rounds; ++round) {
    const size_t stream = random() % FakeMemory::kStreams;
    const auto dice = random() % 20;
    if (dice == 0) {
      driver.catch_up(stream);
    } else if (dice == 1 && random() % 8 == 0) {
      pool.release_free();
    } else if (!owned.empty() && (dice < 9 || owned.size() > 20)) {
      give_back(random() % owned.size());
    } else if (!owned.empty() && dice == 9) {
      auto& [memory, streams] = owned[random() % owned.size()];
      if (streams.empty() || std::find(streams.begin(), streams.end(), stream) != streams.end())
        continue;
      pool.use(memory, FakeMemory::stream(stream));
      streams.push_back(stream);
    } else {
      const size_t scales[] = {2000, 100'000, 3 * kMiB, 14 * kMiB};
      const size_t bytes = random() % scales[random() % 4];
      const bool is_idle = dice == 19;
      try {
        void* memory =
            is_idle ? pool.allocate_idle(bytes) : pool.allocate(bytes, FakeMemory::stream(stream));
        model.taken(memory, bytes, is_idle ? FakeMemory::kStreams : stream);
        owned.push_back({memory, {}});
        if (!is_idle) owned.back().streams.push_back(stream);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::out_of_memory);
        ++*refused;
      }
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  while (!owned.empty()) give_back(owned.size() - 1);
}

void expect_empty(MemoryPool& pool, FakeMemory& driver) {
  for (size_t stream = 0; stream < FakeMemory::kStreams; ++stream) driver.catch_up(stream);
  pool.release_free();
  const auto statistics = pool.statistics();
  EXPECT_EQ(statistics.allocated_bytes, 0u);
  EXPECT_EQ(statistics.reserved_bytes, 0u);
  EXPECT_EQ(statistics.largest_free_bytes, 0u);
}

TEST(MemoryPoolRandom, NobodyGetsWhatAStreamMayStillUse) {
  uint64_t waits = 0;
  int refused = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    FakeMemory driver(48 * kMiB);
    MemoryPool pool(driver, "cuda:0");
    Model model(driver);
    live(pool, driver, model, seed, 2000, &refused);
    if (HasFatalFailure()) return;
    waits += pool.statistics().device_waits;
    expect_empty(pool, driver);
  }
  // Fewer events would mean that the test covered little.
  EXPECT_GT(waits, 100u);
  EXPECT_GT(refused, 100);
}

TEST(MemoryPoolRandom, NorDoThreads) {
  FakeMemory driver(96 * kMiB);
  MemoryPool pool(driver, "cuda:0");
  Model model(driver);
  int refused[3] = {};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 3; ++i)
    threads.emplace_back([&, i] { live(pool, driver, model, 100 + i, 2000, &refused[i]); });
  for (auto& thread : threads) thread.join();
  expect_empty(pool, driver);
}

}  // namespace
}  // namespace tutti::cuda
