#include <sys/epoll.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/backends/conformance/backend_conformance.h"
#include "tests/support/ranks.h"
#include "tutti/base/descriptor.h"

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

// Allreduces of a queue, in shared memory. Each rank sleeps whenever it may, right after it has
// published its part, so that every call needs a wake-up of the rank that comes last: a lost one is
// a second of sleep.
TEST(MemoryQueue, NoWakeUpIsLost) {
  const auto ends = make_backends(find_backend("memory"), 2, [](Context&) {});
  constexpr uint64_t kRounds = repetitions(20'000);
  std::atomic<int> lost{0};
  std::atomic<uint64_t> finished[2] = {};  // rounds
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
      for (uint64_t round = 1; round <= kRounds && lost == 0; ++round) {
        // Either rank may be the one that comes later, by about as long as it takes to fall asleep.
        for (unsigned pause = random() % 400; pause > 0; --pause) __builtin_ia32_pause();
        Launch launch;
        launch.tag = round;
        launch.queue = 2;
        // Half of them are done within start(), if the peer is there already.
        launch.spins = random() % 2 == 0 ? 1 : 0;
        const auto operation = end.start(collective, launch);
        while (lost == 0 && operation && operation->advance() == OperationState::pending) {
          if (end.progress() || !end.arm()) continue;
          if (!poller.wait(1000)) ++lost;
        }
        // The next call would wake the other rank if this one forgot to.
        finished[rank] = round;
        while (lost == 0 && finished[1 - rank] < round) __builtin_ia32_pause();
      }
    });
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(lost, 0);
}

}  // namespace
}  // namespace tutti::test
