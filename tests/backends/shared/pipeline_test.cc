// The pipeline of shared memory by itself: two ranks that are threads, and bells that are flags.

#include "tutti/backends/shared/pipeline.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/ranks.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/process/pause.h"

namespace tutti {
namespace {

// What the two ranks share. Only small allreduces go through it, so no rank asks for more.
class TwoRanks final : public SharedMemory {
 public:
  TwoRanks() {
    for (auto& block : blocks_) {
      block.reset(static_cast<std::byte*>(
          ::operator new (Pipeline::block_bytes(), std::align_val_t{4096})));
      std::fill_n(block.get(), Pipeline::block_bytes(), std::byte{0});
    }
  }
  std::unique_ptr<Region> allocate(size_t) override { throw std::bad_alloc(); }
  std::unique_ptr<Region> allocate_for_good(size_t) override { throw std::bad_alloc(); }
  uint64_t place_of(const std::byte*, size_t) const override { return kNowhere; }
  std::byte* at(int, uint64_t, size_t) override { return nullptr; }
  std::byte* first(int rank) override { return blocks_[static_cast<size_t>(rank)].get(); }
  void ring(int rank) override { rung_[static_cast<size_t>(rank)] = true; }

  Pipeline pipeline(int rank) {
    return {rank, *this, {first(0), first(1)}, {&sleep_[0], &sleep_[1]}};
  }
  SleepLine& sleep_line(size_t rank) { return sleep_[rank]; }
  std::atomic<bool>& rung(size_t rank) { return rung_[rank]; }

 private:
  struct Free {
    void operator()(std::byte* block) const { ::operator delete (block, std::align_val_t{4096}); }
  };
  std::array<std::unique_ptr<std::byte, Free>, 2> blocks_;
  std::array<SleepLine, 2> sleep_;
  std::array<std::atomic<bool>, 2> rung_{};
};

// So that the two threads are on two cores, if this process has two.
void pin_to_core(int number) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (::sched_getaffinity(0, sizeof mine, &mine) != 0 || CPU_COUNT(&mine) < 2) return;
  int core = 0;
  for (; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &mine) && number-- == 0) break;
  CPU_ZERO(&mine);
  CPU_SET(core, &mine);
  ::pthread_setaffinity_np(::pthread_self(), sizeof mine, &mine);
}

// A rank that is about to sleep writes so into its SleepLine and looks for its peer's chunk once
// more; a rank that has published a chunk looks at its peer's SleepLine. Without the fence in
// wake_sleepers() that look may be over while the chunk's number still waits in the core's store
// buffer, behind the elements that were packed. Then the peer sleeps on, although the publishing
// rank has left start(): no clock is needed to call that wake-up lost.
TEST(Pipeline, NoWakeUpIsLost) {
  TwoRanks memory;
  // Fewer where a busy machine lets the ranks wait for a core in each: rank 0 says which is the
  // last.
  std::atomic<int> last{test::repetitions(40'000)};
  const auto enough = Deadline::after(15);
  constexpr unsigned kLongestPause = 60;  // about as long as it takes to fall asleep
  constexpr int64_t kCount = 300;
  const auto deadline = Deadline::after(50);
  std::atomic<int> lost{0}, sleeps{0};
  std::array<std::atomic<int>, 2> started{}, finished{};
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      pin_to_core(static_cast<int>(rank));
      auto pipeline = memory.pipeline(static_cast<int>(rank));
      auto& asleep = memory.sleep_line(rank).sleeps;
      auto& rung = memory.rung(rank);
      std::minstd_rand random(static_cast<unsigned>(rank) + 1);
      std::vector<float> values(static_cast<size_t>(kCount), 1.0f);
      Collective collective;
      collective.kind = CollectiveKind::allreduce;
      collective.op = ReduceOp::max;
      collective.input = collective.output = reinterpret_cast<std::byte*>(values.data());
      collective.send_counts = {&kCount, 1};
      for (int round = 1; round <= last && lost == 0 && !deadline.passed(); ++round) {
        if (rank == 0 && enough.passed()) last = round;
        for (unsigned pause = random() % kLongestPause; pause > 0; --pause) pause_core();
        Launch launch;
        launch.tag = static_cast<uint64_t>(round);
        const auto operation = pipeline.start(collective, launch);
        started[rank] = round;
        while (lost == 0 && operation->advance() == OperationState::pending) {
          asleep.store(1, std::memory_order_seq_cst);
          if (pipeline.may_sleep()) {
            ++sleeps;
            for (int looks = 0; !rung && lost == 0 && !deadline.passed(); ++looks) {
              const bool is_told = started[1 - rank] >= round;
              if (is_told && !rung) ++lost;
              // A peer that has no core on a busy machine gets on sooner.
              if (looks > 1000) std::this_thread::yield();
            }
          }
          rung = false;
          asleep.store(0, std::memory_order_relaxed);
        }
        finished[rank] = round;
        for (int looks = 0; lost == 0 && finished[1 - rank] < round && !deadline.passed(); ++looks)
          looks < 1000 ? pause_core() : std::this_thread::yield();
      }
    });
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(lost, 0) << "in round " << started[0] << " of " << last;
  EXPECT_GT(sleeps, 0) << "no rank was ever about to sleep: nothing was tried";
  EXPECT_FALSE(deadline.passed());
}

}  // namespace
}  // namespace tutti
