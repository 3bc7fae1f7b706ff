// Messages that the sender puts into the receiver's mapped memory or slots, or that the receiver
// reads in the sender's memory.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "tests/backends/ucx/ucx_ends.h"
#include "tutti/backends/ucx/limits.h"

namespace tutti::test {
// Another program runs the cases of this suite over UCX.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);
namespace {

// The number of shared memory segments that this process has attached.
int attached() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find("/SYSV") != line.npos || line.find("/ucx_shm") != line.npos) ++count;
  return count;
}

class UcxPut : public TransportConformance {
 protected:
  // Sends messages of all these sizes from rank 0 to rank 1, at odd offsets of `from` and `to`.
  void exchange(const std::vector<size_t>& sizes, std::byte* from, std::byte* to) {
    std::vector<Ticket> sends, recvs;
    size_t at = 1;
    for (const auto bytes : sizes) {
      const auto data = pattern(bytes, bytes);
      std::copy(data.begin(), data.end(), from + at);
      sends.push_back(
          transport(0).isend(1, {.tag = 5, .key = static_cast<uint32_t>(at)}, {from + at, bytes}));
      recvs.push_back(transport(1).irecv(0, 5, static_cast<uint32_t>(at), {to + at, bytes}));
      at += bytes + 1;
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(finish(transport(1), recvs[i]), TransferState::done) << sizes[i];
      EXPECT_EQ(finish(transport(0), sends[i]), TransferState::done) << sizes[i];
    }
    at = 1;
    for (const auto bytes : sizes) {
      EXPECT_TRUE(std::equal(from + at, from + at + bytes, to + at)) << bytes;
      at += bytes + 1;
    }
  }
};

const std::vector<size_t> kSizes{kMostEager + 1, kSlotBytes,     kSlotBytes + 1, 100'001,
                                 kPartBytes,     kPartBytes + 1, 3 * kPartBytes, 5'000'003};
constexpr size_t kRoom = 16 << 20;

TEST_P(UcxPut, EveryMixtureOfMappedAndOtherMemory) {
  open(2);
  const auto mapped_from = transport(0).allocate(kRoom), mapped_to = transport(1).allocate(kRoom);
  std::vector<std::byte> from(kRoom), to(kRoom);
  exchange(kSizes, from.data(), mapped_to->data());
  exchange(kSizes, mapped_from->data(), mapped_to->data());
  exchange(kSizes, mapped_from->data(), to.data());
  exchange(kSizes, from.data(), to.data());
}

TEST_P(UcxPut, CountsMessagesOnceAndAllocatesNothingMore) {
  open(2);
  const auto memory = transport(1).allocate(kRoom);
  std::vector<std::byte> from(kRoom);
  for (int round = 0; round < 3; ++round) {
    const auto before = transport(0).counters();
    const auto allocations = before.allocations + transport(1).counters().allocations;
    exchange({kPartBytes * 3}, from.data(), memory->data());
    const auto after = transport(0).counters();
    EXPECT_EQ(after.messages_sent - before.messages_sent, 1u);
    EXPECT_EQ(after.bytes_sent - before.bytes_sent, kPartBytes * 3);
    EXPECT_GE(after.bytes_to_peer[1] - before.bytes_to_peer[1], kPartBytes * 3);
    EXPECT_LT(after.bytes_to_peer[1] - before.bytes_to_peer[1], kPartBytes * 3 + 1000);
    if (round == 0) continue;
    EXPECT_EQ(after.allocations + transport(1).counters().allocations, allocations);
  }
}

TEST_P(UcxPut, PeersLetGoOfARegionThatIsFreed) {
  open(3);
  std::vector<std::byte> from(kRoom);
  const int before = attached();
  for (int round = 0; round < 5; ++round) {
    auto memory = transport(1).allocate(kRoom);
    exchange(kSizes, from.data(), memory->data());
    EXPECT_EQ(attached(), before + 2);  // attached by its owner and by rank 0
    memory.reset();
    EXPECT_TRUE(until([&] { return attached() == before; }));
  }
}

TEST_P(UcxPut, ARegionOutlivesItsTransport) {
  const int before = attached();
  open(2);
  const auto memory = transport(1).allocate(kRoom);
  std::vector<std::byte> from(kRoom);
  exchange(kSizes, from.data(), memory->data());
  close(0);
  close(1);
  memory->data()[kRoom - 1] = std::byte{1};
  EXPECT_EQ(attached(), before + 1);
}

// A rank's published memory stays until its peers have attached it, or for 0.2 s.
TEST_P(UcxPut, ARankMayLeaveAtOnce) {
  for (int round = 0; round < 20; ++round) {
    const auto store = make_memory_store();
    run_ranks(3, [&](int rank) {
      UcxTransport transport(thread_context(rank, 3, store));
      if (rank == round % 3) return;
      EXPECT_TRUE(until([&] {
        transport.progress();
        return transport.take_event().has_value();
      }));
    });
  }
}

// Two ranks send more messages at the same time than there are slots. All must arrive, each in its
// own buffer.
TEST_P(UcxPut, ReceivesTakeTurnsAtTheSlots) {
  open(3);
  constexpr size_t kEach = 3 * kSlotBytes + 17;
  constexpr int kMany = 4 * static_cast<int>(kSlots);
  std::vector<std::vector<std::byte>> sent, received;
  std::vector<std::pair<int, Ticket>> tickets;
  for (int i = 0; i < kMany; ++i) {
    sent.push_back(pattern(kEach, static_cast<unsigned>(i)));
    received.emplace_back(kEach);
  }
  for (int i = 0; i < kMany; ++i) {
    const auto at = static_cast<size_t>(i);
    const int from = i % 2 == 0 ? 0 : 2;
    tickets.emplace_back(1, transport(1).irecv(from, 9, static_cast<uint32_t>(i), received[at]));
    tickets.emplace_back(
        from, transport(from).isend(1, {.tag = 9, .key = static_cast<uint32_t>(i)}, sent[at]));
  }
  for (const auto& [rank, ticket] : tickets)
    EXPECT_EQ(finish(transport(rank), ticket), TransferState::done);
  EXPECT_TRUE(sent == received);
}

// Slots that a lost rank should have filled become free for other ranks.
TEST_P(UcxPut, ALostSenderGivesItsPlacesBack) {
  open(3);
  constexpr size_t kEach = 4 * kSlotBytes;
  constexpr int kMany = static_cast<int>(kSlots);
  std::vector<std::byte> from(kEach);
  std::vector<std::vector<std::byte>> to(kMany, std::vector<std::byte>(kEach));
  const auto memory = transport(1).allocate(kEach);
  std::vector<Ticket> lost;
  for (int i = 0; i < kMany; ++i) {
    transport(0).isend(1, {.tag = 1, .key = static_cast<uint32_t>(i)}, from);
    lost.push_back(transport(1).irecv(0, 1, static_cast<uint32_t>(i), to[static_cast<size_t>(i)]));
  }
  transport(0).isend(1, {.tag = 2, .key = 0}, from);
  lost.push_back(transport(1).irecv(0, 2, 0, {memory->data(), kEach}));
  // Rank 0 makes no progress: rank 1 assigns slots and waits.
  for (int i = 0; i < 1000; ++i) transport(1).progress();
  for (const auto ticket : lost) EXPECT_EQ(transport(1).test(ticket), TransferState::pending);
  close(0);
  for (const auto ticket : lost) EXPECT_EQ(finish(transport(1), ticket), TransferState::failed);
  const auto sent = pattern(kEach, 8);
  const Ticket recv = transport(1).irecv(2, 3, 0, to[0]);
  const Ticket send = transport(2).isend(1, {.tag = 3, .key = 0}, sent);
  EXPECT_EQ(finish(transport(1), recv), TransferState::done);
  EXPECT_EQ(finish(transport(2), send), TransferState::done);
  EXPECT_TRUE(sent == to[0]);
}

// A cancelled receive does not end while data for it may still arrive.
TEST_P(UcxPut, ACancelledReceiveWaitsForWhatIsOnItsWay) {
  open(2);
  const auto memory = transport(1).allocate(kRoom);
  const auto sent = pattern(3 * kPartBytes, 1);
  const Ticket send = transport(0).isend(1, {.tag = 1, .key = 0}, sent);
  const Ticket recv = transport(1).irecv(0, 1, 0, {memory->data(), sent.size()});
  for (int i = 0; i < 1000; ++i) transport(1).progress();
  transport(1).cancel(recv);
  EXPECT_EQ(transport(1).test(recv), TransferState::pending);
  const auto state = finish(transport(1), recv);
  EXPECT_EQ(finish(transport(0), send), TransferState::done);
  EXPECT_EQ(state, TransferState::done);
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), memory->data()));
}

// An abort does not wait long for a sender that makes no progress. After it, the sender no longer
// writes into the receiver's memory.
TEST_P(UcxPut, AbortEndsWhatHasPlaces) {
  open(2);
  const auto memory = transport(1).allocate(kRoom);
  std::vector<std::byte> from(3 * kPartBytes, std::byte{7}), to(from.size());
  std::vector<Ticket> sends, recvs;
  for (uint32_t key = 0; key < 2; ++key) {
    sends.push_back(transport(0).isend(1, {.tag = 1, .key = key}, from));
    recvs.push_back(transport(1).irecv(
        0, 1, key, key == 0 ? std::span(memory->data(), from.size()) : std::span(to)));
  }
  for (int i = 0; i < 1000; ++i) transport(1).progress();
  const auto begin = Clock::now();
  transport(1).abort(Error(ErrorCode::peer_lost, "test"));
  for (const auto recv : recvs) {
    while (transport(1).test(recv) == TransferState::pending) transport(1).progress();
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
  std::fill_n(memory->data(), from.size(), std::byte{1});
  for (int i = 0; i < 1000; ++i) transport(0).progress();
  EXPECT_EQ(std::count(memory->data(), memory->data() + from.size(), std::byte{1}),
            static_cast<std::ptrdiff_t>(from.size()));
  close(1);
  for (const auto send : sends) EXPECT_NE(finish(transport(0), send), TransferState::pending);
}

// A peer that has not received the abort announces messages in memory that is new to this rank. By
// then this rank has closed the endpoint and waits until the peer no longer uses its slots.
TEST_P(UcxPut, MemoryThatIsAnnouncedDuringAnAbortIsLeftAlone) {
  open(2);
  constexpr int kMany = 20;
  const auto memory = transport(1).allocate(3 * kPartBytes);
  std::vector<std::byte> from(3 * kPartBytes);
  const Ticket recv = transport(1).irecv(0, 1, 0, {memory->data(), from.size()});
  std::vector<Ticket> sends{transport(0).isend(1, {.tag = 1, .key = 0}, from)};
  for (int i = 0; i < 1000; ++i) transport(1).progress();
  ASSERT_EQ(transport(1).test(recv), TransferState::pending);
  std::thread aborting([&] {
    transport(1).abort(Error(ErrorCode::peer_lost, "test"));
    transport(1).progress();
  });
  std::vector<std::unique_ptr<Region>> regions;
  for (int i = 1; i <= kMany; ++i) {
    regions.push_back(transport(0).allocate(kPartBytes));
    sends.push_back(transport(0).isend(1, {.tag = 1, .key = static_cast<uint32_t>(i)},
                                       {regions.back()->data(), kPartBytes}));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  aborting.join();
  EXPECT_EQ(transport(1).test(recv), TransferState::failed);
  EXPECT_FALSE(transport(1).take_event());  // rank 0 is as well as before
  close(1);
  for (const auto send : sends) EXPECT_NE(finish(transport(0), send), TransferState::pending);
}

// The memory of a killed rank disappears before its peers can detect the death. They may then find
// a key of this memory in a message.
TEST_P(UcxPut, AKeyWhoseMemoryIsGoneIsALostPeer) {
  open(2);
  std::vector<std::byte> to(kPartBytes);
  auto memory = transport(0).allocate(kPartBytes);
  const Ticket recv = transport(1).irecv(0, 1, 0, to);
  const Ticket send = transport(0).isend(1, {.tag = 1, .key = 0}, {memory->data(), kPartBytes});
  memory.reset();
  EXPECT_EQ(finish(transport(1), recv), TransferState::failed);
  const auto event = transport(1).take_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->peer, 0);
  EXPECT_EQ(event->kind, PeerEvent::Kind::lost);
  EXPECT_EQ(event->detail, "UCX cannot attach its memory: Connection reset by remote peer");
  transport(0).abort(Error(ErrorCode::peer_lost, "test"));
  EXPECT_EQ(finish(transport(0), send), TransferState::failed);
}

// With this UCX transport, a peer could not keep memory alive while UCX attaches it. Memory is
// therefore never announced, and messages work without it.
class UcxUnmapped : public UcxPut {};

TEST_P(UcxUnmapped, NothingIsAttached) {
  open(2);
  const int before = attached();
  const auto from = transport(0).allocate(kRoom), to = transport(1).allocate(kRoom);
  exchange(kSizes, from->data(), to->data());
  EXPECT_EQ(attached(), before + 2);  // their owners' alone
}

class UcxView : public TransportConformance {
 protected:
  // Rank 1 views a message in rank 0's region without a copy.
  void lend(bool for_results = false) {
    open(2);
    region_ = transport(0).allocate(sent_.size());
    std::copy(sent_.begin(), sent_.end(), region_->data());
    send_ =
        transport(0).isend(1, {.tag = 1, .is_lent = for_results}, {region_->data(), sent_.size()});
    recv_ = transport(1).irecv_view(0, 1, 0, received_);
    ASSERT_EQ(finish(transport(1), recv_), TransferState::done);
    view_ = transport(1).view(recv_);
    ASSERT_NE(view_, nullptr);
    ASSERT_TRUE(is_there());
  }
  bool is_there() const { return std::equal(sent_.begin(), sent_.end(), view_); }

  const std::vector<std::byte> sent_ = pattern(kPartBytes + 3, 1);
  std::vector<std::byte> received_ = std::vector<std::byte>(sent_.size(), std::byte{0x55});
  std::unique_ptr<Region> region_;
  Ticket send_ = 0, recv_ = 0;
  const std::byte* view_ = nullptr;
};

TEST_P(UcxView, CopiesNothing) {
  lend();
  region_->data()[0] ^= std::byte{1};
  EXPECT_EQ(view_[0], region_->data()[0]);
  EXPECT_TRUE(transport(1).give_back(recv_));
  EXPECT_EQ(finish(transport(0), send_), TransferState::done);
  EXPECT_EQ(std::count(received_.begin(), received_.end(), std::byte{0x55}),
            static_cast<std::ptrdiff_t>(received_.size()));
}

TEST_P(UcxView, ResultsLieWhereTheyWereLentFrom) {
  lend(true);
  const auto loan = transport(1).loan(recv_);
  ASSERT_EQ(loan.data, view_);
  std::fill_n(loan.data, sent_.size(), std::byte{0x11});
  EXPECT_TRUE(transport(1).give_back(recv_));
  EXPECT_EQ(finish(transport(0), send_), TransferState::done);
  // loan.place says that the result is in the lent memory already, so it is not moved. A receive
  // into other memory is copied.
  for (const bool is_there : {true, false}) {
    std::vector<std::byte> other(sent_.size());
    const std::span target(is_there ? region_->data() : other.data(), sent_.size());
    const auto send = transport(1).isend(0, {.tag = 2, .place = loan.place}, sent_);
    const auto recv = transport(0).irecv(1, 2, 0, target);
    EXPECT_EQ(finish(transport(0), recv), TransferState::done);
    EXPECT_EQ(finish(transport(1), send), TransferState::done);
    const auto wanted = is_there ? std::vector(sent_.size(), std::byte{0x11}) : sent_;
    EXPECT_TRUE(std::equal(target.begin(), target.end(), wanted.begin())) << is_there;
  }
}

TEST_P(UcxView, MayNotBeOverwrittenUnasked) {
  lend();
  EXPECT_EQ(transport(1).loan(recv_).data, nullptr);
}

TEST_P(UcxView, MayNotBeOverwrittenOnceItsSenderAborted) {
  lend(true);
  transport(0).abort(Error(ErrorCode::peer_lost, "test"));
  transport(0).progress();
  EXPECT_EQ(transport(1).loan(recv_).data, nullptr);
  EXPECT_FALSE(transport(1).give_back(recv_));
}

TEST_P(UcxView, WhoAbortsWaitsForWhoWrites) {
  lend(true);
  ASSERT_NE(transport(1).loan(recv_).data, nullptr);
  transport(0).abort(Error(ErrorCode::peer_lost, "test"));
  std::atomic<bool> has_ended{false};
  std::thread aborting([&] {
    transport(0).progress();
    has_ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(has_ended);
  EXPECT_FALSE(transport(1).give_back(recv_));
  aborting.join();
}

TEST_P(UcxView, OtherMemoryIsPut) {
  open(2);
  const auto send = transport(0).isend(1, {.tag = 1, .key = 0}, sent_);
  const auto recv = transport(1).irecv_view(0, 1, 0, received_);
  EXPECT_EQ(finish(transport(1), recv), TransferState::done);
  EXPECT_EQ(transport(1).view(recv), nullptr);
  EXPECT_EQ(finish(transport(0), send), TransferState::done);
  EXPECT_TRUE(sent_ == received_);
}

TEST_P(UcxView, ACancelledSendWaitsForItsReader) {
  lend();
  transport(0).cancel(send_);
  settle();
  EXPECT_EQ(transport(0).test(send_), TransferState::pending);
  EXPECT_TRUE(transport(1).give_back(recv_));
  EXPECT_NE(finish(transport(0), send_), TransferState::pending);
}

TEST_P(UcxView, StaysMappedWhenItsSenderIsLost) {
  const int before = attached();
  lend();
  close(0);
  region_.reset();
  EXPECT_EQ(wait_event(transport(1))->peer, 0);
  EXPECT_TRUE(is_there());
  EXPECT_FALSE(transport(1).give_back(recv_));
  close(1);
  EXPECT_EQ(attached(), before);
}

// The reader makes no progress, and learns of the abort without any message.
TEST_P(UcxView, MeansNothingOnceItsSenderAborted) {
  lend();
  transport(0).abort(Error(ErrorCode::peer_lost, "test"));
  EXPECT_EQ(transport(0).test(send_), TransferState::pending);
  for (int i = 0; i < 100; ++i) transport(0).progress();
  EXPECT_EQ(transport(0).test(send_), TransferState::failed);
  EXPECT_FALSE(transport(1).give_back(recv_));
}

TEST_P(UcxView, MeansNothingToWhoWasGivenUp) {
  lend();
  // Rank 1 leaves while it still views the message.
  transport(1).goodbye(0);
  EXPECT_EQ(wait_event(transport(0))->peer, 1);
  EXPECT_EQ(transport(0).test(send_), TransferState::failed);
  EXPECT_FALSE(transport(1).give_back(recv_));
}

TEST_P(UcxView, TakesRegionsThatComeAndGo) {
  open(2);
  const int before = attached();
  for (int round = 0; round < 5; ++round) {
    auto region = transport(0).allocate(sent_.size());
    std::copy(sent_.begin(), sent_.end(), region->data());
    const auto recv = transport(1).irecv_view(0, 1, 0, received_);
    const auto send = transport(0).isend(1, {.tag = 1, .key = 0}, {region->data(), sent_.size()});
    ASSERT_EQ(finish(transport(1), recv), TransferState::done);
    ASSERT_NE(transport(1).view(recv), nullptr);
    EXPECT_TRUE(transport(1).give_back(recv));
    EXPECT_EQ(finish(transport(0), send), TransferState::done);
    EXPECT_EQ(attached(), before + 2);
    region.reset();
    EXPECT_TRUE(until([&] { return attached() == before; }));
  }
}

INSTANTIATE_TEST_SUITE_P(Ucx, UcxView,
                         testing::Values(ucx_ends("Default", ""), ucx_ends("Sysv", "sysv")),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Ucx, UcxPut,
                         testing::Values(ucx_ends("Default", ""), ucx_ends("Sysv", "sysv")),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Ucx, UcxUnmapped, testing::Values(ucx_ends("Posix", "posix")),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::test
