#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <thread>

#include "tests/backends/conformance/backend_conformance.h"
#include "tests/backends/conformance/queued_parts.h"
#include "tests/support/ranks.h"
#include "tutti/backends/memory/thread_memory.h"
#include "tutti/base/deadline.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/process/pause.h"

namespace tutti::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Memory, BackendConformance,
                         testing::Values(BackendMaker{"memory", [](int size) {
                                                        return make_backends(
                                                            find_backend("memory"), size,
                                                            [](Context& context) {
                                                              context.executor.segment_bytes =
                                                                  kTestSegmentBytes;
                                                            });
                                                      }}));

TEST(ThreadHeap, MemoryThatIsTakenAgainIsZeroed) {
  constexpr size_t kBytes = 8192;
  ThreadHeap heap;
  for (int i = 0; i < 3; ++i) {
    std::byte* const memory = heap.take(kBytes);
    EXPECT_EQ(std::count(memory, memory + kBytes, std::byte{0}), std::ptrdiff_t{kBytes});
    std::fill_n(memory, kBytes, std::byte{0x55});
    heap.give_back(memory);
  }
}

// Queued allreduces in shared memory. Each rank sleeps whenever it may, right after it has
// published its part. Every operation therefore needs a wake-up by the rank that comes last. A lost
// wake-up shows as a sleep of one second.
TEST(MemoryQueue, NoWakeUpIsLost) {
  const auto ends = make_backends(find_backend("memory"), 2, [](Context&) {});
  // A busy machine, where the ranks wait for a core in each round, runs fewer rounds: rank 0 sets
  // the last one.
  std::atomic<uint64_t> last{repetitions(20'000)};
  const auto enough = Deadline::after(15);
  std::atomic<int> lost{0};
  std::atomic<uint64_t> finished[2] = {};  // the last finished round of each rank
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < ends.size(); ++rank)
    ranks.emplace_back([&, rank] {
      auto& end = *ends[rank];
      Poller poller;
      poller.watch(end.descriptor(), EPOLLIN);
      std::minstd_rand random(static_cast<unsigned>(rank) + 1);
      float value = 1;
      const int64_t count = 1;
      Collective collective;
      collective.kind = CollectiveKind::allreduce;
      collective.op = ReduceOp::max;
      collective.input = collective.output = reinterpret_cast<std::byte*>(&value);
      collective.send_counts = {&count, 1};
      for (uint64_t round = 1; round <= last && lost == 0; ++round) {
        if (rank == 0 && enough.passed()) last = round;
        // Either rank may come later, by about the time that it takes to fall asleep.
        for (unsigned pause = random() % 400; pause > 0; --pause) pause_core();
        Launch launch;
        launch.tag = round;
        launch.queue = 2;
        // Half of the operations complete within start() if the peer has come already.
        launch.spins = random() % 2 == 0 ? 1 : 0;
        const auto operation = end.start(collective, launch);
        while (lost == 0 && operation && operation->advance() == OperationState::pending) {
          if (end.progress() || !end.arm()) continue;
          if (!poller.wait(1000)) ++lost;
        }
        // The next operation would wake the other rank if this operation forgot to, so this rank
        // waits here. On a busy machine the other rank may need this rank's core.
        finished[rank] = round;
        for (int looks = 0; lost == 0 && finished[1 - rank] < round; ++looks)
          looks < 1000 ? pause_core() : std::this_thread::yield();
      }
    });
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(lost, 0) << "in round " << finished[0];
  EXPECT_GT(finished[0], 50u);
}

// Each rank has its own thread and several operations in flight: peers read the memory that it
// writes.
TEST(MemoryQueue, EveryKindBetweenThreads) {
  constexpr int kSize = 3;
  constexpr size_t kAhead = 3;
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const auto ends = make_backends(find_backend("memory"), kSize, [](Context&) {});
  CaseMaker maker(kSize, seed);
  std::vector<Case> cases;
  const int64_t counts[] = {0, 3, 40, 6000, 70'000, 150'000};
  for (int turn = 0; turn < repetitions(8); ++turn)
    for (const auto kind : kinds_of_all_ranks()) {
      cases.push_back(maker.make(kind, DataType::f32, ReduceOp::sum, counts[random() % 6]));
      know_longest(cases.back());
    }
  std::vector<std::vector<std::unique_ptr<Part>>> parts(kSize);
  run_ranks(kSize, [&](int rank) {
    auto& end = *ends[static_cast<size_t>(rank)];
    std::minstd_rand form(static_cast<unsigned>(seed) + static_cast<unsigned>(rank));
    auto& mine = parts[static_cast<size_t>(rank)];
    std::deque<OperationPtr> running;
    const auto deadline = Deadline::after(40);
    for (size_t i = 0; (i < cases.size() || !running.empty()) && !deadline.passed();) {
      if (i < cases.size() && running.size() < kAhead) {
        mine.push_back(
            std::make_unique<Part>(end, cases[i], rank, static_cast<Form>(form() % kForms)));
        running.push_back(start_in_queue(end, mine.back()->collective, launch_in(0, ++i)));
      }
      const auto state = running.front()->advance();
      if (state == OperationState::pending) continue;
      EXPECT_EQ(state, OperationState::done);
      running.pop_front();
    }
    EXPECT_FALSE(deadline.passed()) << "rank " << rank << " has begun " << mine.size();
  });
  for (const auto& mine : parts)
    for (const auto& part : mine) part->check();
}

// Every operation of all ranks goes through shared memory, whatever its size: the transport sends
// nothing. predict() gives the number of messages and bytes exactly.
TEST(MemoryQueue, EveryKindGoesOneWayAndAsPredicted) {
  constexpr int kSize = 3;
  const auto ends = make_backends(find_backend("memory"), kSize, [](Context&) {});
  CaseMaker maker(kSize, 1);
  uint64_t sequence = 0;
  for (const auto kind : kinds_of_all_ranks())
    for (const int64_t count : {0, 1, 20, 3000, 60'000, 300'000}) {
      SCOPED_TRACE(testing::Message() << to_string(kind) << " of " << count);
      auto test = maker.make(kind, DataType::f32, ReduceOp::sum, count);
      know_longest(test);
      ++sequence;
      std::vector<std::unique_ptr<Part>> parts;
      std::vector<OperationPtr> operations;
      std::vector<TransportCounters> before;
      for (int rank = 0; rank < kSize; ++rank) {
        auto& end = *ends[static_cast<size_t>(rank)];
        parts.push_back(std::make_unique<Part>(end, test, rank, Form::apart));
        before.push_back(end.counters());
        const auto launch = launch_in(0, sequence);
        ASSERT_TRUE(end.packs_itself(parts.back()->collective, launch));
        operations.push_back(end.start(parts.back()->collective, launch));
      }
      bool is_pending = true;
      for (const auto deadline = Deadline::after(20); is_pending && !deadline.passed();) {
        is_pending = false;
        for (auto& operation : operations)
          is_pending |= operation->advance() == OperationState::pending;
      }
      ASSERT_FALSE(is_pending);
      for (int rank = 0; rank < kSize; ++rank) {
        auto& end = *ends[static_cast<size_t>(rank)];
        const auto at = static_cast<size_t>(rank);
        const auto predicted = end.predict(parts[at]->collective, launch_in(0, sequence));
        const auto after = end.counters();
        EXPECT_EQ(after.messages_sent - before[at].messages_sent, predicted.messages);
        EXPECT_EQ(after.bytes_sent - before[at].bytes_sent, predicted.bytes);
        EXPECT_EQ(end.transport()->counters().messages_sent, 0u);
        parts[at]->check();
      }
    }
}

}  // namespace
}  // namespace tutti::test
