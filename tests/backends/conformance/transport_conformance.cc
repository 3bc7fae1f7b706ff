#include "tests/backends/conformance/transport_conformance.h"

#include <algorithm>
#include <random>
#include <vector>

namespace tutti::test {

TEST_P(TransportConformance, TellsRankSizeAndRoute) {
  open(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(transport(rank).rank(), rank);
    EXPECT_EQ(transport(rank).size(), 3);
    const auto route = transport(rank).route((rank + 1) % 3);
    EXPECT_TRUE(GetParam().route.empty() ? !route.empty() : route == GetParam().route) << route;
    EXPECT_EQ(transport(rank).route(rank), "self");
  }
}

TEST_P(TransportConformance, DeliversEverySize) {
  open(2);
  for (const size_t bytes : {0, 1, 39, 40, 41, 4055, 4056, 4057, 16383, 16384, 16385, 65537,
                             1 << 20, (1 << 20) + 1, 5'000'003}) {
    const auto sent = pattern(bytes, bytes);
    std::vector<std::byte> received(bytes, std::byte{0x55});
    for (const bool receive_first : {false, true}) {
      std::fill(received.begin(), received.end(), std::byte{0x55});
      Ticket recv = 0;
      if (receive_first) recv = transport(1).irecv(0, 7, 3, received);
      const Ticket send = transport(0).isend(1, {.tag = 7, .key = 3}, sent);
      if (!receive_first) {
        settle();
        recv = transport(1).irecv(0, 7, 3, received);
      }
      EXPECT_EQ(finish(transport(1), recv), TransferState::done) << bytes;
      EXPECT_EQ(finish(transport(0), send), TransferState::done) << bytes;
      EXPECT_TRUE(same(sent, received)) << bytes;
    }
  }
}

TEST_P(TransportConformance, MatchesByPeerTagAndKeyInAnyOrder) {
  open(3);
  std::mt19937 random(4711);
  struct Message {
    int from, to;
    uint64_t tag;
    uint32_t key;
    std::vector<std::byte> data, received;
    Ticket send = 0, recv = 0;
  };
  std::vector<Message> messages;
  for (int from = 0; from < 3; ++from)
    for (int to = 0; to < 3; ++to)
      for (uint64_t tag = 0; from != to && tag < 6; ++tag)
        for (uint32_t key = 0; key < 4; ++key) {
          const size_t bytes = (tag + key) % 3 == 0 ? 1'100'000 + key : tag * 100 + key;
          messages.push_back({from, to, tag << 40, key, pattern(bytes, messages.size()),
                              std::vector<std::byte>(bytes)});
        }
  // Each side posts each message at a random time.
  std::vector<std::pair<size_t, bool>> posts;
  for (size_t i = 0; i < messages.size(); ++i) posts.insert(posts.end(), {{i, true}, {i, false}});
  std::shuffle(posts.begin(), posts.end(), random);
  for (const auto& [i, is_send] : posts) {
    auto& message = messages[i];
    if (is_send)
      message.send =
          transport(message.from).isend(message.to, {message.tag, message.key, 0}, message.data);
    else
      message.recv =
          transport(message.to).irecv(message.from, message.tag, message.key, message.received);
    if (random() % 4 == 0) progress_all();
  }
  for (auto& message : messages) {
    EXPECT_EQ(finish(transport(message.to), message.recv), TransferState::done);
    EXPECT_EQ(finish(transport(message.from), message.send), TransferState::done);
    EXPECT_TRUE(same(message.data, message.received));
  }
}

TEST_P(TransportConformance, EqualTagAndKeyArriveInOrder) {
  open(2);
  constexpr int kMessages = 50;
  std::vector<std::vector<std::byte>> sent, received;
  std::vector<Ticket> tickets;
  for (int i = 0; i < kMessages; ++i) {
    sent.push_back(pattern(20'000, static_cast<uint64_t>(i)));
    received.emplace_back(20'000);
  }
  for (const auto& data : sent) tickets.push_back(transport(0).isend(1, {5, 5, 0}, data));
  for (auto& data : received) tickets.push_back(transport(1).irecv(0, 5, 5, data));
  for (size_t i = 0; i < tickets.size(); ++i)
    EXPECT_EQ(finish(transport(i < kMessages ? 0 : 1), tickets[i]), TransferState::done);
  for (size_t i = 0; i < kMessages; ++i) EXPECT_TRUE(same(sent[i], received[i])) << i;
}

TEST_P(TransportConformance, AnnouncedMessagesBlockNobody) {
  open(2);
  const auto large = pattern(3 << 20, 1);
  std::vector<Ticket> waiting;
  for (uint32_t key = 0; key < 20; ++key)
    waiting.push_back(transport(0).isend(1, {1, key, 0}, large));
  settle();
  // Small and large messages still arrive behind 60 MiB that nobody receives.
  for (const size_t bytes : {10, 1'100'000}) {
    const auto data = pattern(bytes, 2);
    std::vector<std::byte> received(bytes);
    const Ticket send = transport(0).isend(1, {2, 0, 0}, data);
    const Ticket recv = transport(1).irecv(0, 2, 0, received);
    EXPECT_EQ(finish(transport(1), recv), TransferState::done);
    EXPECT_EQ(finish(transport(0), send), TransferState::done);
    EXPECT_TRUE(same(received, data));
  }
  for (const Ticket ticket : waiting) EXPECT_EQ(transport(0).test(ticket), TransferState::pending);
  std::vector<std::byte> received(large.size());
  for (uint32_t key = 20; key-- > 0;) {
    const Ticket recv = transport(1).irecv(0, 1, key, received);
    EXPECT_EQ(finish(transport(1), recv), TransferState::done);
    EXPECT_EQ(finish(transport(0), waiting[key]), TransferState::done);
    EXPECT_TRUE(same(received, large));
  }
}

TEST_P(TransportConformance, ManySmallMessagesBeforeTheirReceivesAreBounded) {
  open(2);
  // 32 MiB of small messages exceed the credit by far, so most of them wait at the sender.
  constexpr uint32_t kMessages = 4096;
  const auto data = pattern(8192, 3);
  std::vector<Ticket> sends, receives;
  for (uint32_t key = 0; key < kMessages; ++key)
    sends.push_back(transport(0).isend(1, {9, key, 0}, data));
  settle();
  const auto pending = std::count_if(sends.begin(), sends.end(), [&](Ticket& ticket) {
    const bool is_pending = transport(0).test(ticket) == TransferState::pending;
    if (!is_pending) ticket = 0;
    return is_pending;
  });
  EXPECT_GT(pending, 3000);
  std::vector<std::vector<std::byte>> received(kMessages, std::vector<std::byte>(data.size()));
  for (uint32_t key = 0; key < kMessages; ++key)
    receives.push_back(transport(1).irecv(0, 9, key, received[key]));
  for (uint32_t key = 0; key < kMessages; ++key) {
    EXPECT_EQ(finish(transport(1), receives[key]), TransferState::done);
    if (sends[key] != 0) {
      EXPECT_EQ(finish(transport(0), sends[key]), TransferState::done);
    }
    EXPECT_TRUE(same(received[key], data));
  }
}

TEST_P(TransportConformance, AnotherLengthFailsTheReceiveOnly) {
  open(2);
  for (const size_t bytes : {100, 1'100'000})
    for (const size_t wanted : {size_t{0}, bytes - 1, bytes + 1})
      for (const bool receive_first : {false, true}) {
        const auto data = pattern(bytes, 4);
        std::vector<std::byte> received(wanted, std::byte{0x11});
        Ticket recv = 0;
        if (receive_first) recv = transport(1).irecv(0, 1, 1, received);
        const Ticket send = transport(0).isend(1, {1, 1, 0}, data);
        if (!receive_first) {
          settle();
          recv = transport(1).irecv(0, 1, 1, received);
        }
        EXPECT_EQ(finish(transport(1), recv), TransferState::failed);
        EXPECT_EQ(finish(transport(0), send), TransferState::done);
        EXPECT_EQ(received, std::vector<std::byte>(wanted, std::byte{0x11}));
        // Later messages still work.
        std::vector<std::byte> right(bytes);
        const Ticket send2 = transport(0).isend(1, {1, 1, 0}, data);
        const Ticket recv2 = transport(1).irecv(0, 1, 1, right);
        EXPECT_EQ(finish(transport(1), recv2), TransferState::done);
        EXPECT_EQ(finish(transport(0), send2), TransferState::done);
        EXPECT_EQ(right, data);
      }
}

TEST_P(TransportConformance, VerdictsRideOnMessages) {
  open(2);
  for (const size_t bytes : {0, 100, 1'100'000}) {
    const auto data = pattern(bytes, 5);
    std::vector<std::byte> received(bytes);
    EXPECT_FALSE(transport(1).has_veto(33));
    const Ticket send = transport(0).isend(1, {33, 0, 6}, data);
    // The veto is visible before the receive is posted, even if only the announcement has arrived.
    EXPECT_TRUE(until([&] { return transport(1).has_veto(33); })) << bytes;
    EXPECT_FALSE(transport(1).has_veto(34));
    EXPECT_FALSE(transport(0).has_veto(33));
    const Ticket recv = transport(1).irecv(0, 33, 0, received);
    uint32_t verdict = 9;
    EXPECT_EQ(finish(transport(1), recv, &verdict), TransferState::done);
    EXPECT_EQ(verdict, 15u);
    EXPECT_EQ(finish(transport(0), send, &verdict), TransferState::done);
    EXPECT_FALSE(transport(1).has_veto(33));

    // The veto is also visible if the receive was posted first.
    const Ticket recv2 = transport(1).irecv(0, 33, 0, received);
    const Ticket send2 = transport(0).isend(1, {33, 0, 6}, data);
    EXPECT_TRUE(until([&] { return transport(1).has_veto(33); })) << bytes;
    verdict = 0;
    EXPECT_EQ(finish(transport(1), recv2, &verdict), TransferState::done);
    EXPECT_EQ(verdict, 6u);
    EXPECT_EQ(finish(transport(0), send2), TransferState::done);
    EXPECT_FALSE(transport(1).has_veto(33));
  }
}

TEST_P(TransportConformance, ViewsShowWhatWasSentUntilTheyAreGivenBack) {
  open(2);
  for (const size_t bytes : {0, 100, 20'000, 1'100'000}) {
    for (const bool receive_first : {false, true}) {
      const auto sent = pattern(bytes, bytes);
      const auto region = transport(0).allocate(bytes + 1);
      std::copy(sent.begin(), sent.end(), region->data());
      std::vector<std::byte> received(bytes, std::byte{0x55});
      Ticket recv = 0;
      if (receive_first) recv = transport(1).irecv_view(0, 7, 3, received);
      const Ticket send =
          transport(0).isend(1, {.tag = 7, .key = 3, .verdict = 4}, {region->data(), bytes});
      if (!receive_first) {
        settle();
        recv = transport(1).irecv_view(0, 7, 3, received);
      }
      uint32_t verdict = 1;
      EXPECT_EQ(finish(transport(1), recv, &verdict), TransferState::done) << bytes;
      EXPECT_EQ(verdict, 5u);
      EXPECT_FALSE(transport(1).has_veto(7));
      if (const auto* view = transport(1).view(recv)) {
        settle();
        EXPECT_EQ(transport(0).test(send), TransferState::pending) << bytes;
        EXPECT_TRUE(std::equal(sent.begin(), sent.end(), view)) << bytes;
        EXPECT_TRUE(transport(1).give_back(recv));
      } else {
        EXPECT_TRUE(same(sent, received)) << bytes;
      }
      EXPECT_EQ(finish(transport(0), send), TransferState::done) << bytes;
    }
  }
}

TEST_P(TransportConformance, CancelledReceiveLetsItsMessageGo) {
  open(2);
  for (const size_t bytes : {100, 1'100'000, 6'000'000}) {
    const auto data = pattern(bytes, 6);
    for (const int rounds : {0, 1, 2, 3}) {
      std::vector<std::byte> received(bytes);
      const Ticket recv = transport(1).irecv(0, 1, 0, received);
      const Ticket send = transport(0).isend(1, {1, 0, 0}, data);
      for (int i = 0; i < rounds; ++i) progress_all();
      transport(1).cancel(recv);
      const auto state = finish(transport(1), recv);
      if (state == TransferState::done) {
        EXPECT_TRUE(same(received, data));
        EXPECT_EQ(finish(transport(0), send), TransferState::done);
        continue;
      }
      EXPECT_EQ(state, TransferState::failed);
      // The memory is the caller's again, so the transport must not write to it.
      std::fill(received.begin(), received.end(), std::byte{0x33});
      settle();
      EXPECT_EQ(received, std::vector<std::byte>(bytes, std::byte{0x33}));
      // The message still waits for a receive, unless its transfer had begun.
      if (transport(0).test(send) == TransferState::pending) {
        const Ticket again = transport(1).irecv(0, 1, 0, received);
        EXPECT_EQ(finish(transport(1), again), TransferState::done);
        EXPECT_EQ(finish(transport(0), send), TransferState::done);
        EXPECT_TRUE(same(received, data));
      } else {
        transport(1).discard(1, 1);
        close(0);
        close(1);
        open(2);
      }
    }
  }
}

TEST_P(TransportConformance, CancelledSendIsAsIfNeverSent) {
  open(2);
  for (const size_t bytes : {100, 1'100'000, 6'000'000}) {
    for (const int rounds : {0, 1, 2, 3, 4})
      for (const bool receive_first : {false, true}) {
        auto data = pattern(bytes, 7);
        std::vector<std::byte> received(bytes);
        Ticket recv = 0;
        if (receive_first) recv = transport(1).irecv(0, 2, 0, received);
        const Ticket send = transport(0).isend(1, {2, 0, 0}, data);
        for (int i = 0; i < rounds; ++i) progress_all();
        transport(0).cancel(send);
        const auto state = finish(transport(0), send);
        std::fill(data.begin(), data.end(), std::byte{0x77});
        settle();
        if (!receive_first) recv = transport(1).irecv(0, 2, 0, received);
        settle();
        if (transport(1).test(recv) == TransferState::done) {
          // The message had arrived before the cancel.
          EXPECT_EQ(state, TransferState::done);
          EXPECT_TRUE(same(received, pattern(bytes, 7)));
          continue;
        }
        EXPECT_EQ(state, TransferState::failed);
        const auto other = pattern(bytes, 8);
        const Ticket send2 = transport(0).isend(1, {2, 0, 0}, other);
        EXPECT_EQ(finish(transport(1), recv), TransferState::done);
        EXPECT_EQ(finish(transport(0), send2), TransferState::done);
        EXPECT_TRUE(same(received, other));
      }
  }
}

TEST_P(TransportConformance, DiscardedTagsAreThrownAway) {
  open(2);
  const auto small = pattern(100, 9), large = pattern(1'100'000, 10);
  std::vector<Ticket> sends;
  for (const uint64_t tag : {10, 11, 12, 13}) {
    sends.push_back(transport(0).isend(1, {tag, 0, 1}, small));
    sends.push_back(transport(0).isend(1, {tag, 1, 1}, large));
  }
  EXPECT_TRUE(until([&] { return transport(1).has_veto(13); }));
  transport(1).discard(10, 10);  // some wait here already
  transport(1).discard(12, 14);
  EXPECT_FALSE(transport(1).has_veto(10));
  EXPECT_FALSE(transport(1).has_veto(12));
  EXPECT_TRUE(transport(1).has_veto(11));
  sends.push_back(transport(0).isend(1, {14, 0, 1}, small));  // some come later
  sends.push_back(transport(0).isend(1, {14, 1, 1}, large));
  // The sends of discarded messages complete.
  for (const size_t i : {0, 1, 4, 5, 6, 7, 8, 9})
    EXPECT_EQ(finish(transport(0), sends[i]), TransferState::done) << i;
  EXPECT_FALSE(transport(1).has_veto(14));
  std::vector<std::byte> received(small.size()), received_large(large.size());
  const Ticket recv = transport(1).irecv(0, 11, 0, received);
  const Ticket recv_large = transport(1).irecv(0, 11, 1, received_large);
  EXPECT_EQ(finish(transport(1), recv), TransferState::done);
  EXPECT_EQ(finish(transport(1), recv_large), TransferState::done);
  EXPECT_TRUE(same(received, small));
  EXPECT_TRUE(same(received_large, large));
  EXPECT_EQ(finish(transport(0), sends[2]), TransferState::done);
  EXPECT_EQ(finish(transport(0), sends[3]), TransferState::done);
}

TEST_P(TransportConformance, ControlMessagesKeepTheirOrder) {
  open(3);
  std::vector<std::vector<std::byte>> sent;
  for (size_t i = 0; i < 40; ++i) sent.push_back(pattern(i * i * i, i));
  sent.push_back(pattern(Transport::kMaxControlBytes, 99));
  const auto noise = pattern(2'000'000, 1);
  const Ticket unmatched = transport(1).isend(0, {1, 1, 0}, noise);
  for (const auto& message : sent)
    for (const int from : {1, 2}) {
      // post() copies the message, so the caller may overwrite it.
      auto copy = message;
      transport(from).post(0, copy);
      std::fill(copy.begin(), copy.end(), std::byte{0});
    }
  size_t taken[3] = {};
  int peer = -1;
  std::vector<std::byte> message;
  EXPECT_TRUE(until([&] {
    while (transport(0).take(peer, message)) {
      EXPECT_TRUE(same(message, sent.at(taken[peer])));
      ++taken[peer];
    }
    return taken[1] == sent.size() && taken[2] == sent.size();
  }));
  EXPECT_FALSE(transport(0).take(peer, message));
  EXPECT_EQ(transport(1).test(unmatched), TransferState::pending);
}

TEST_P(TransportConformance, CountsWhatItSends) {
  open(2);
  const auto small = pattern(1000, 1), large = pattern(1'100'000, 2);
  std::vector<std::byte> a(small.size()), b(large.size());
  const auto round = [&](uint32_t key) {
    const Ticket tickets[] = {transport(0).isend(1, {1, key, 0}, small),
                              transport(0).isend(1, {2, key, 0}, large)};
    const Ticket receives[] = {transport(1).irecv(0, 1, key, a), transport(1).irecv(0, 2, key, b)};
    for (const Ticket ticket : receives)
      EXPECT_EQ(finish(transport(1), ticket), TransferState::done);
    for (const Ticket ticket : tickets)
      EXPECT_EQ(finish(transport(0), ticket), TransferState::done);
  };
  for (uint32_t i = 0; i < 100; ++i) round(i);
  const auto warm = transport(0).counters(), warm_receiver = transport(1).counters();
  EXPECT_EQ(warm.messages_sent, 200u);
  EXPECT_EQ(warm.bytes_sent, 100u * (1000 + 1'100'000));
  EXPECT_GT(warm.bytes_to_peer.at(1), warm.bytes_sent);
  EXPECT_LT(warm.bytes_to_peer.at(1), warm.bytes_sent + 200 * 200);
  EXPECT_EQ(warm.bytes_to_peer.at(0), 0u);
  constexpr uint32_t kRounds = 1000;
  for (uint32_t i = 0; i < kRounds; ++i) round(i);
  EXPECT_EQ(transport(0).counters().allocations, warm.allocations);
  EXPECT_EQ(transport(1).counters().allocations, warm_receiver.allocations);
  const auto controls = transport(0).counters().control_messages_sent;
  transport(0).post(1, small);
  settle();
  EXPECT_GE(transport(0).counters().control_messages_sent, controls + 1);
  EXPECT_EQ(transport(0).counters().messages_sent, 2 * (100u + kRounds));
}

}  // namespace tutti::test
