#include <thread>
#include <vector>

#include "tests/backends/conformance/transport_conformance.h"

// The part of the suite about lost ranks, goodbyes, aborts and sleep.

namespace tutti::test {

TEST_P(TransportConformance, DestructionIsALoss) {
  open(3);
  const auto large = pattern(2 << 20, 1);
  std::vector<std::byte> memory(100), early(3);
  const Ticket send = transport(0).isend(2, {1, 0, 0}, large);
  const Ticket recv = transport(0).irecv(2, 1, 1, memory);
  const auto whole = pattern(3, 3);
  const Ticket sent = transport(2).isend(0, {1, 5, 0}, whole);
  EXPECT_EQ(finish(transport(2), sent), TransferState::done);
  settle();
  close(2);
  EXPECT_EQ(finish(transport(0), send), TransferState::failed);
  EXPECT_EQ(finish(transport(0), recv), TransferState::failed);
  const auto event = wait_event(transport(0));
  ASSERT_TRUE(event);
  EXPECT_EQ(event->peer, 2);
  EXPECT_EQ(event->kind, PeerEvent::Kind::lost);
  EXPECT_FALSE(event->detail.empty());
  // A message that had fully arrived can still be received. New sends and receives fail. The other
  // ranks keep working.
  EXPECT_EQ(finish(transport(0), transport(0).irecv(2, 1, 5, early)), TransferState::done);
  EXPECT_EQ(early, whole);
  EXPECT_EQ(finish(transport(0), transport(0).isend(2, {1, 2, 0}, large)), TransferState::failed);
  EXPECT_EQ(finish(transport(0), transport(0).irecv(2, 1, 3, memory)), TransferState::failed);
  transport(0).post(2, memory);
  const auto hello = pattern(100, 2);
  const Ticket good = transport(1).isend(0, {1, 4, 0}, hello);
  EXPECT_EQ(finish(transport(0), transport(0).irecv(1, 1, 4, memory)), TransferState::done);
  EXPECT_EQ(finish(transport(1), good), TransferState::done);
  EXPECT_EQ(memory, hello);
  settle();
  EXPECT_FALSE(transport(0).take_event());
}

TEST_P(TransportConformance, GoodbyeFlushesAndIsNoLoss) {
  open(2);
  // The message is larger than the buffers between the ranks, so goodbye() must wait for rank 1 to
  // read.
  std::vector<std::byte> last = pattern(8 << 20, 4), message;
  std::thread leaving([&] {
    transport(0).post(1, last);
    transport(0).goodbye(kPatience);
    close(0);
  });
  int peer = -1;
  const auto deadline = Deadline::after(kPatience);
  while (!transport(1).take(peer, message) && !deadline.passed())
    if (!transport(1).progress()) rest(transport(1));
  EXPECT_TRUE(same(message, last));
  std::optional<PeerEvent> event;
  while (!(event = transport(1).take_event()) && !deadline.passed())
    if (!transport(1).progress()) rest(transport(1));
  leaving.join();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->peer, 0);
  EXPECT_EQ(event->kind, PeerEvent::Kind::left);
}

TEST_P(TransportConformance, GoodbyeHasADeadline) {
  open(2);
  // Rank 1 reads nothing.
  for (int i = 0; i < 4; ++i) transport(0).post(1, pattern(Transport::kMaxControlBytes, 1));
  const auto before = Clock::now();
  transport(0).goodbye(0.2);
  const double seconds = std::chrono::duration<double>(Clock::now() - before).count();
  EXPECT_GE(seconds, 0.15);
  EXPECT_LT(seconds, 5);
}

TEST_P(TransportConformance, AbortFailsEverythingFromAnyThread) {
  open(2);
  const auto large = pattern(2 << 20, 1);
  std::vector<std::byte> memory(100);
  const Ticket send = transport(0).isend(1, {1, 0, 0}, large);
  const Ticket recv = transport(0).irecv(1, 1, 1, memory);
  while (transport(0).progress()) {
  }
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    transport(0).abort(Error(ErrorCode::closed, "enough"));
  });
  EXPECT_EQ(sleep_until_over(transport(0), send), TransferState::failed);
  EXPECT_EQ(sleep_until_over(transport(0), recv), TransferState::failed);
  other.join();
  EXPECT_EQ(transport(0).test(transport(0).isend(1, {1, 2, 0}, memory)), TransferState::failed);
  EXPECT_EQ(transport(0).test(transport(0).irecv(1, 1, 2, memory)), TransferState::failed);
  // Messages that still arrive must not wake rank 0 for ever.
  for (int i = 0; i < 100; ++i) transport(1).post(0, pattern(1000, 1));
  settle();
  EXPECT_TRUE(comes_to_rest(transport(0)));
}

TEST_P(TransportConformance, AnIdleTransportSleeps) {
  open(3);
  settle();
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(comes_to_rest(transport(rank)));
}

// Each side sleeps whenever it has nothing to do, so that every message needs a wake-up. A lost
// wake-up is a hang, which rest() reports.
TEST_P(TransportConformance, NoWakeUpIsLost) {
  open(2);
  constexpr uint32_t kRounds = 3000;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      std::vector<std::byte> out(64), in(64);
      for (uint32_t round = 0; round < kRounds && !HasFatalFailure(); ++round) {
        const Ticket recv = transport(rank).irecv(1 - rank, 1, round, in);
        if (rank == 1) sleep_until_over(transport(1), recv);
        const Ticket send = transport(rank).isend(1 - rank, {1, round, 0}, out);
        if (rank == 0) sleep_until_over(transport(0), recv);
        sleep_until_over(transport(rank), send);
      }
      transport(rank).goodbye(kPatience);
    });
  for (auto& thread : threads) thread.join();
}

// Large messages fill the buffers between the ranks, so that senders sleep too.
TEST_P(TransportConformance, NoWakeUpOfASenderIsLost) {
  open(3);
  constexpr uint32_t kRounds = 12;
  constexpr size_t kBytes = 4 << 20;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      const auto out = pattern(kBytes, static_cast<uint64_t>(rank));
      const int to = (rank + 1) % 3, from = (rank + 2) % 3;
      const auto expected = pattern(kBytes, static_cast<uint64_t>(from));
      std::vector<std::byte> in(kBytes);
      for (uint32_t round = 0; round < kRounds && !HasFatalFailure(); ++round) {
        const Ticket recv = transport(rank).irecv(from, 1, round, in);
        const Ticket send = transport(rank).isend(to, {1, round, 0}, out);
        EXPECT_EQ(sleep_until_over(transport(rank), recv), TransferState::done);
        EXPECT_EQ(sleep_until_over(transport(rank), send), TransferState::done);
        EXPECT_TRUE(same(in, expected));
      }
      transport(rank).goodbye(kPatience);
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace tutti::test
