#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "tests/backends/conformance/backend_conformance.h"

// The part of the suite about lost ranks, goodbyes, aborts, registered memory and sleep.

namespace tutti::test {

TEST_P(BackendConformance, APeersEndFailsWhatNeedsIt) {
  open(3);
  CaseMaker maker(3, 13);
  auto test = maker.make(CollectiveKind::allreduce, DataType::f32, ReduceOp::sum, 300'000);
  auto running = start(test, ++tag_);
  std::erase_if(running, [](const Running& one) { return one.rank == 2; });
  for (int i = 0; i < 3; ++i) backend(0).progress();
  ends_[2].reset();
  const auto deadline = Deadline::after(kPatience);
  for (const int rank : {0, 1}) {
    std::optional<PeerEvent> event;
    while (!(event = backend(rank).transport()->take_event()) && !deadline.passed())
      backend(rank).progress();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->peer, 2);
    EXPECT_EQ(event->kind, PeerEvent::Kind::lost);
  }
  // A rank that needs data from the lost rank fails. A rank that needs data from a failed rank may
  // wait for ever; it gives up because of the event.
  const auto failed = [](const Running& one) { return one.state == OperationState::failed; };
  while (std::none_of(running.begin(), running.end(), failed) && !deadline.passed())
    for (auto& one : running) {
      backend(one.rank).progress();
      one.state = one.operation->advance();
    }
  EXPECT_TRUE(std::any_of(running.begin(), running.end(), failed));
  for (auto& one : running)
    if (one.state == OperationState::pending) one.operation->cancel();
  finish(running, OperationState::failed);
}

TEST_P(BackendConformance, AGoodbyeIsNoLoss) {
  open(2);
  CaseMaker maker(2, 14);
  auto test = maker.make(CollectiveKind::allgather, DataType::f32, ReduceOp::sum, 1000);
  run(test);
  // Rank 0 keeps making progress meanwhile, as an engine does, because a library may wait for its
  // answer.
  std::thread leaving([&] {
    backend(1).transport()->goodbye(kPatience);
    ends_[1].reset();
  });
  const auto deadline = Deadline::after(kPatience);
  std::optional<PeerEvent> event;
  while (!(event = backend(0).transport()->take_event()) && !deadline.passed())
    backend(0).progress();
  leaving.join();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, PeerEvent::Kind::left);
}

TEST_P(BackendConformance, AbortFailsWhatIsPending) {
  open(2);
  CaseMaker maker(2, 15);
  auto test = maker.make(CollectiveKind::allreduce, DataType::f32, ReduceOp::sum, 300'000);
  std::vector<Running> running;
  running.push_back({0, backend(0).start(test.of(0), launch_of(1))});
  backend(0).progress();
  std::thread([&] { backend(0).abort(Error(ErrorCode::closed, "enough")); }).join();
  finish(running, OperationState::failed);
}

TEST_P(BackendConformance, RegionsAreAlignedAndOfTheHost) {
  open(1);
  for (const size_t bytes : {0, 1, 4096, 1'000'003}) {
    const auto region = backend(0).allocate(bytes, Device{});
    EXPECT_GE(region->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(region->data()) % 4096, 0u);
    std::memset(region->data(), 1, bytes);
  }
  EXPECT_THROW(backend(0).allocate(1, Device{DeviceKind::cuda, 0}), Error);
}

// Each rank has its own thread, which sleeps whenever it can.
TEST_P(BackendConformance, SleepersAreWoken) {
  open(3);
  CaseMaker maker(3, 16);
  constexpr int kRounds = 60;
  std::vector<Case> cases;
  for (int i = 0; i < kRounds; ++i)
    cases.push_back(maker.make(i % 2 ? CollectiveKind::allreduce : CollectiveKind::alltoall,
                               DataType::f32, ReduceOp::sum, i % 7 == 0 ? 400'000 : 100));
  std::vector<std::vector<Collective>> collectives(3);
  for (int rank = 0; rank < 3; ++rank)
    for (auto& test : cases) collectives[static_cast<size_t>(rank)].push_back(test.of(rank));
  run_ranks(3, [&](int rank) {
    Backend& own = backend(rank);
    Poller poller;
    poller.watch(own.descriptor(), 1 /* EPOLLIN */);
    uint64_t tag = 0;
    for (const auto& collective : collectives[static_cast<size_t>(rank)]) {
      const auto operation = own.start(collective, launch_of(++tag));
      while (operation->advance() == OperationState::pending)
        if (!own.progress() && own.arm())
          if (!poller.wait(static_cast<int>(kPatience * 1000)))
            throw std::runtime_error("woken by nobody");
    }
    own.transport()->goodbye(kPatience);
  });
  for (const auto& test : cases) test.check();
}

}  // namespace tutti::test
