#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/backends/support/world.h"
#include "tutti/backends/stream/frame.h"
#include "tutti/backends/stream/stream_core.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"

// How a StreamTransport handles a peer that breaks the protocol.

namespace tutti::test {
namespace {

using Bytes = std::vector<std::byte>;

/// A channel whose peer is the test.
struct Script {
  std::deque<std::byte> in;  // bytes from the peer
  Bytes out;                 // bytes to the peer
  bool ended = false;        // the end follows after `in`
  size_t most_at_once = 1 << 20;
  size_t room = SIZE_MAX;  // bytes that the channel still takes
  int looks_until_delivered = 0;
  bool refuses = false;  // writing fails
};

class ScriptChannel final : public Channel {
 public:
  explicit ScriptChannel(Script& script) : script_(script) {}
  size_t write(std::span<const iovec> parts) override {
    if (script_.refuses) throw Error(ErrorCode::peer_lost, "connection reset");
    const size_t most = std::min(script_.most_at_once, script_.room);
    size_t total = 0;
    for (const auto& part : parts) {
      const auto* bytes = static_cast<const std::byte*>(part.iov_base);
      const size_t count = std::min(part.iov_len, most - total);
      script_.out.insert(script_.out.end(), bytes, bytes + count);
      total += count;
      if (count < part.iov_len) break;
    }
    if (script_.room != SIZE_MAX) script_.room -= total;
    return total;
  }
  size_t read(std::span<std::byte> bytes) override {
    if (script_.in.empty() && script_.ended) throw Error(ErrorCode::peer_lost, "end of file");
    const size_t count = std::min({bytes.size(), script_.in.size(), script_.most_at_once});
    std::copy_n(script_.in.begin(), count, bytes.begin());
    script_.in.erase(script_.in.begin(), script_.in.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  bool arm(bool) override { return script_.in.empty() && !script_.ended; }
  void watch(Poller&) override {}
  std::string_view route() const override { return "script"; }
  bool delivered() override { return script_.looks_until_delivered-- <= 0; }

 private:
  Script& script_;
};

class StreamProtocol : public testing::Test {
 protected:
  void open() {
    script_ = {};
    std::vector<std::unique_ptr<Channel>> channels(2);
    channels[1] = std::make_unique<ScriptChannel>(script_);
    transport_ = make_stream_transport(0, std::move(channels));
  }
  void SetUp() override { open(); }

  static Bytes frame(const FrameHeader& header, const Bytes& payload = {}) {
    const auto bytes = encode_frame(header);
    Bytes all(bytes.begin(), bytes.end());
    for (const std::byte byte : payload) all.push_back(byte);
    return all;
  }
  void feed(const Bytes& bytes) { script_.in.insert(script_.in.end(), bytes.begin(), bytes.end()); }
  void run() {
    for (int i = 0; i < 1000 && transport_->progress(); ++i) {
    }
  }
  /// Returns the headers of the frames that the transport has sent.
  std::vector<FrameHeader> sent() {
    std::vector<FrameHeader> frames;
    for (size_t at = 0; at + kFrameBytes <= script_.out.size();) {
      frames.push_back(decode_frame(
          std::span<const std::byte, kFrameBytes>(script_.out.data() + at, kFrameBytes)));
      at += kFrameBytes + frames.back().payload();
    }
    script_.out.clear();
    return frames;
  }
  void expect_lost(const std::string& part) {
    run();
    const auto event = transport_->take_event();
    ASSERT_TRUE(event) << part;
    EXPECT_EQ(event->peer, 1);
    EXPECT_EQ(event->kind, PeerEvent::Kind::lost);
    EXPECT_NE(event->detail.find(part), std::string::npos) << event->detail;
    EXPECT_FALSE(transport_->take_event());
  }

  Script script_;
  std::unique_ptr<Transport> transport_;
};

TEST_F(StreamProtocol, RefusesWhatIsNoFrame) {
  struct Case {
    FrameHeader header;
    const char* text;
  };
  feed(pattern(100, 1));
  expect_lost("where a frame should begin");
  const Case cases[] = {
      {{.type = static_cast<FrameType>(0)}, "it sent a frame of unknown type 0"},
      {{.type = static_cast<FrameType>(77)}, "it sent a frame of unknown type 77"},
      {{.type = FrameType::eager, .length = kMaxEagerBytes + 1}, "at most 1048576"},
      {{.type = FrameType::data, .length = ~uint64_t{0}}, "at most 1048576"},
      {{.type = FrameType::control, .length = Transport::kMaxControlBytes + 1},
       "; at most 16777216 is allowed"},
      {{.type = FrameType::announce, .length = uint64_t{1} << 63}, "at most"},
      {{.type = FrameType::goodbye, .length = 1},
       "it sent a frame of type 9 with length 1; at most 0 is allowed"},
      {{.type = FrameType::credit, .length = 1}, "more credit than"},
  };
  for (const auto& [header, text] : cases) {
    open();
    feed(frame(header));
    expect_lost(text);
  }
}

TEST_F(StreamProtocol, HoldsPeersToTheirCredit) {
  // Empty messages cost credit too.
  for (uint64_t tag = 0; tag < eager_credit(2) / eager_cost(0); ++tag)
    feed(frame({.type = FrameType::eager, .tag = tag}));
  run();
  EXPECT_FALSE(transport_->take_event());
  feed(frame({.type = FrameType::eager, .tag = 1}));
  expect_lost("more messages than it had credit for");
}

TEST_F(StreamProtocol, HoldsPeersToABoundOfAnnouncements) {
  for (uint64_t i = 0; i < kMaxAnnounced; ++i)
    feed(frame({.type = FrameType::announce, .length = 1 << 20, .tag = i, .ticket = i}));
  run();
  EXPECT_FALSE(transport_->take_event());
  feed(frame({.type = FrameType::announce, .length = 1}));
  expect_lost("announced more messages");
}

TEST_F(StreamProtocol, ARefusedAnnouncementMakesRoomForAnother) {
  const Bytes large(kMaxEagerBytes + 1);
  for (uint32_t i = 0; i <= kMaxAnnounced; ++i) {
    const Ticket ticket = transport_->isend(1, {.tag = 1, .key = i}, large);
    run();
    const auto frames = sent();
    ASSERT_EQ(frames.size(), 1u) << i;
    ASSERT_EQ(frames[0].type, FrameType::announce);
    feed(frame({.type = FrameType::refuse, .ticket = frames[0].ticket}));
    run();
    ASSERT_EQ(transport_->test(ticket), TransferState::done);
  }
}

TEST_F(StreamProtocol, ThousandsOfTagsThatAreDiscardedOneByOneStayDiscarded) {
  constexpr uint64_t kTags = 10'000;
  for (uint64_t tag = 0; tag < kTags; ++tag) transport_->discard(tag, tag);
  feed(frame({.type = FrameType::eager, .tag = 0}));
  feed(frame({.type = FrameType::eager, .tag = kTags}));
  run();
  const Ticket discarded = transport_->irecv(1, 0, 0, {});
  const Ticket wanted = transport_->irecv(1, kTags, 0, {});
  run();
  EXPECT_EQ(transport_->test(discarded), TransferState::pending);
  EXPECT_EQ(transport_->test(wanted), TransferState::done);
}

TEST_F(StreamProtocol, DataBeyondTheMessageIsALoss) {
  Bytes memory(1000);
  const Ticket recv = transport_->irecv(1, 5, 0, memory);
  feed(frame({.type = FrameType::announce, .length = 1000, .tag = 5, .ticket = 99}));
  run();
  const auto frames = sent();
  ASSERT_EQ(frames.size(), 1u);
  ASSERT_EQ(frames[0].type, FrameType::grant);
  EXPECT_EQ(frames[0].ticket, 99u);
  const Ticket mine = frames[0].tag;
  feed(frame({.type = FrameType::data, .length = 600, .ticket = mine}, Bytes(600)));
  run();
  EXPECT_EQ(transport_->test(recv), TransferState::pending);
  feed(frame({.type = FrameType::data, .length = 401, .ticket = mine}, Bytes(401)));
  expect_lost("more data than the message has");
  EXPECT_EQ(transport_->test(recv), TransferState::failed);
}

TEST_F(StreamProtocol, AnswersToNoQuestionAreIgnored) {
  const Bytes large = pattern(kMaxEagerBytes + 1, 1);
  const Ticket send = transport_->isend(1, {1, 0, 0}, large);
  run();
  ASSERT_EQ(sent().size(), 1u);
  for (const Ticket ticket : {Ticket{0}, send + 1, send + (Ticket{1} << 32), ~Ticket{0}}) {
    feed(frame({.type = FrameType::grant, .tag = 7, .ticket = ticket}));
    feed(frame({.type = FrameType::refuse, .ticket = ticket}));
    feed(frame({.type = FrameType::withdraw, .ticket = ticket}));
    feed(frame({.type = FrameType::data, .length = 10, .ticket = ticket}, Bytes(10)));
  }
  // A repeated grant has no effect.
  feed(frame({.type = FrameType::grant, .tag = 8, .ticket = send}));
  feed(frame({.type = FrameType::grant, .tag = 9, .ticket = send}));
  run();
  EXPECT_FALSE(transport_->take_event());
  const auto frames = sent();
  ASSERT_EQ(frames.size(), 2u);
  for (const auto& one : frames) {
    EXPECT_EQ(one.type, FrameType::data);
    EXPECT_EQ(one.ticket, 8u);
  }
  EXPECT_EQ(frames[0].length + frames[1].length, large.size());
  EXPECT_EQ(transport_->test(send), TransferState::done);
}

TEST_F(StreamProtocol, AFrameCutShortByTheEndIsALoss) {
  const auto whole = frame({.type = FrameType::eager, .length = 500, .tag = 3}, pattern(500, 2));
  for (size_t cut = 0; cut < whole.size(); cut += 13) {
    open();
    Bytes memory(500);
    const Ticket recv = transport_->irecv(1, 3, 0, memory);
    feed(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut)));
    run();
    EXPECT_EQ(transport_->test(recv), TransferState::pending);
    script_.ended = true;
    expect_lost("end of file");
    EXPECT_EQ(transport_->test(recv), TransferState::failed);
  }
}

TEST_F(StreamProtocol, BytesMayComeOneByOne) {
  script_.most_at_once = 1;
  const Bytes data = pattern(300, 3), large = pattern(1'100'000, 4);
  Bytes memory(300), control;
  const Ticket recv = transport_->irecv(1, 3, 0, memory);
  const Ticket send = transport_->isend(1, {4, 0, 0}, large);
  feed(frame({.type = FrameType::eager, .length = 300, .tag = 3}, data));
  feed(frame({.type = FrameType::control, .length = 300}, data));
  feed(frame({.type = FrameType::grant, .tag = 5, .ticket = send}));
  for (int i = 0; i < 100; ++i) transport_->progress();
  EXPECT_EQ(transport_->test(recv), TransferState::done);
  EXPECT_TRUE(memory == data);
  int peer = 0;
  ASSERT_TRUE(transport_->take(peer, control));
  EXPECT_TRUE(control == data);
  EXPECT_EQ(transport_->test(send), TransferState::done);
}

TEST_F(StreamProtocol, AReceiveThatComesInMidMessageTakesTheRest) {
  const Bytes data = pattern(9000, 5);
  const auto whole = frame({.type = FrameType::eager, .length = 9000, .tag = 3}, data);
  for (const bool fits : {true, false})
    for (const size_t cut :
         {size_t{40}, size_t{41}, size_t{4000}, size_t{6000}, whole.size() - 1}) {
      open();
      feed(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut)));
      run();
      Bytes memory(fits ? 9000 : 8999);
      const Ticket recv = transport_->irecv(1, 3, 0, memory);
      EXPECT_EQ(transport_->test(recv), fits ? TransferState::pending : TransferState::failed);
      feed(Bytes(whole.begin() + static_cast<std::ptrdiff_t>(cut), whole.end()));
      run();
      if (fits) {
        EXPECT_EQ(transport_->test(recv), TransferState::done);
        EXPECT_TRUE(memory == data);
      }
      EXPECT_FALSE(transport_->take_event());
    }
}

TEST_F(StreamProtocol, ASendCancelledInMidFrameNeedsItsMemoryNoMore) {
  const Bytes original = pattern(3 << 20, 6);
  for (const size_t room : {size_t{0}, size_t{1}, size_t{500'000}}) {
    open();
    Bytes data = original;
    const Ticket send = transport_->isend(1, {3, 0, 0}, data);
    run();
    sent();
    feed(frame({.type = FrameType::grant, .tag = 1, .ticket = send}));
    script_.room = room;
    run();
    transport_->cancel(send);
    EXPECT_EQ(transport_->test(send), TransferState::failed);
    std::ranges::fill(data, std::byte{0});
    script_.room = SIZE_MAX;
    run();
    if (room > 0) {
      // The begun frame ends with its original bytes.
      const auto* payload = script_.out.data() + kFrameBytes;
      EXPECT_TRUE(std::equal(payload, payload + kMaxDataBytes, original.begin()));
    }
    const auto frames = sent();
    EXPECT_EQ(frames.size(), room == 0 ? 1u : 2u);
    EXPECT_EQ(frames.back().type, FrameType::withdraw);
    EXPECT_EQ(frames.front().type, room == 0 ? FrameType::withdraw : FrameType::data);
  }
}

// A send that is cancelled before its frame begins keeps all credit: its own cost, and the credit
// that its frame would have returned to the peer.
TEST_F(StreamProtocol, ASendCancelledBeforeItsFrameBeginsLeavesItsCredit) {
  const Bytes data = pattern(1000, 1);
  Bytes memory(1000);
  const Ticket recv = transport_->irecv(1, 5, 0, memory);
  feed(frame({.type = FrameType::eager, .length = 1000, .tag = 5}, data));
  run();
  ASSERT_EQ(transport_->test(recv), TransferState::done);
  script_.room = 0;
  for (uint32_t i = 0; i <= eager_credit(2) / eager_cost(1000); ++i) {
    const Ticket send = transport_->isend(1, {.tag = 1, .key = i}, data);
    run();
    transport_->cancel(send);
    ASSERT_EQ(transport_->test(send), TransferState::failed);
  }
  script_.room = SIZE_MAX;
  run();
  EXPECT_THAT(sent(), testing::IsEmpty());
  transport_->isend(1, {.tag = 2}, data);
  run();
  const auto frames = sent();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].type, FrameType::eager) << "the credit of the cancelled sends is lost";
  EXPECT_EQ(frames[0].ticket, eager_cost(1000)) << "the peer's credit is lost";
}

TEST_F(StreamProtocol, AnAnnouncementThatIsTakenBackMakesRoomForAnother) {
  const Bytes large(kMaxEagerBytes + 1);
  for (uint32_t i = 0; i <= kMaxAnnounced; ++i) {
    const Ticket ticket = transport_->isend(1, {.tag = 1, .key = i}, large);
    run();
    transport_->cancel(ticket);
    run();
    const auto frames = sent();
    ASSERT_EQ(frames.size(), 2u) << i;
    EXPECT_EQ(frames[0].type, FrameType::announce);
    EXPECT_EQ(frames[1].type, FrameType::withdraw);
  }
  // The same number of the peer's announcements may wait, and a withdrawn one makes room too.
  for (uint32_t i = 0; i <= kMaxAnnounced; ++i) {
    const FrameHeader announce{
        .type = FrameType::announce, .key = i, .length = 1 << 20, .tag = 1, .ticket = i};
    feed(frame(announce));
    feed(frame({.type = FrameType::withdraw, .key = i, .tag = 1, .ticket = i}));
    run();
  }
  EXPECT_FALSE(transport_->take_event());
}

// A peer that reads can be sent any number of control messages. These are 272 MiB.
TEST_F(StreamProtocol, ControlMessagesThatWereWrittenMakeRoomForOthers) {
  const Bytes message(Transport::kMaxControlBytes);
  for (int i = 0; i < 17; ++i) {
    transport_->post(1, message);
    run();
    script_.out.clear();
  }
  EXPECT_FALSE(transport_->take_event());
}

TEST_F(StreamProtocol, AGoodbyeBehindMuchElseIsReadThoughWritingFails) {
  for (int i = 0; i < 10; ++i)
    feed(frame({.type = FrameType::control, .length = 50'000}, Bytes(50'000)));
  feed(frame({.type = FrameType::goodbye}));
  script_.ended = script_.refuses = true;
  transport_->post(1, Bytes(10));
  run();
  const auto event = transport_->take_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, PeerEvent::Kind::left);
}

TEST_F(StreamProtocol, AGoodbyeEndsTheConversation) {
  Bytes memory(10);
  const Ticket recv = transport_->irecv(1, 3, 0, memory);
  feed(frame({.type = FrameType::eager, .length = 10, .tag = 4}, Bytes(10)));
  feed(frame({.type = FrameType::goodbye}));
  feed(pattern(1000, 1));  // bytes after the goodbye are ignored
  run();
  const auto event = transport_->take_event();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, PeerEvent::Kind::left);
  EXPECT_EQ(transport_->test(recv), TransferState::failed);
  const Ticket whole = transport_->irecv(1, 4, 0, memory);
  EXPECT_EQ(transport_->test(whole), TransferState::done);
}

TEST_F(StreamProtocol, AGoodbyeReadsOnUntilItHasArrived) {
  script_.looks_until_delivered = 5;
  const FrameHeader last{.type = FrameType::eager, .length = 4, .tag = 9};
  feed(frame(last, pattern(4, 1)));
  transport_->goodbye(20);
  EXPECT_LT(script_.looks_until_delivered, 0);
  EXPECT_TRUE(script_.in.empty());  // unread bytes would reset the connection
  const auto frames = sent();
  ASSERT_FALSE(frames.empty());
  EXPECT_EQ(frames.back().type, FrameType::goodbye);
}

TEST_F(StreamProtocol, AGoodbyeThatNeverArrivesIsWaitedForUntilTheDeadline) {
  script_.looks_until_delivered = INT_MAX;
  const auto begin = Clock::now();
  transport_->goodbye(0.05);
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(50));
}

// Calls abort() twice, since any thread may call it at any time.
TEST_F(StreamProtocol, ASecondAbortWakesNobodyForGood) {
  for (int i = 0; i < 2; ++i) {
    transport_->abort(Error(ErrorCode::closed, "enough"));
    EXPECT_FALSE(transport_->arm());
    Poller poller;
    poller.watch(transport_->descriptor(), 1 /* EPOLLIN */);
    EXPECT_TRUE(poller.wait(0));
    EXPECT_TRUE(transport_->progress());
    EXPECT_TRUE(transport_->arm());
    EXPECT_FALSE(poller.wait(0));
  }
}

// A StreamCore whose channels have no descriptor, driven by the test.
class StreamCoreAlone : public StreamProtocol {
 protected:
  void SetUp() override {
    std::vector<std::unique_ptr<Channel>> channels(2);
    channels[1] = std::make_unique<ScriptChannel>(script_);
    core_ = std::make_unique<StreamCore>(0, std::move(channels));
  }
  std::unique_ptr<StreamCore> core_;
};

TEST_F(StreamCoreAlone, AGoodbyeIsFlushedOnceItIsWrittenAndDelivered) {
  script_.room = kFrameBytes + 10;  // one frame and part of the next
  script_.looks_until_delivered = 2;
  core_->post(1, pattern(1, 1));
  EXPECT_FALSE(core_->is_written());
  core_->begin_goodbye();
  while (core_->progress()) {
  }
  EXPECT_FALSE(core_->is_written());
  EXPECT_FALSE(core_->is_flushed());
  // Delivery is checked only after everything is written.
  EXPECT_EQ(script_.looks_until_delivered, 2);
  script_.room = SIZE_MAX;
  while (core_->progress()) {
  }
  EXPECT_TRUE(core_->is_written());
  EXPECT_FALSE(core_->is_flushed());
  EXPECT_FALSE(core_->is_flushed());
  EXPECT_TRUE(core_->is_flushed());
  const auto frames = sent();
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].type, FrameType::control);
  EXPECT_EQ(frames[1].type, FrameType::goodbye);
}

TEST_F(StreamCoreAlone, AnAbortFailsEverythingAtTheNextProgress) {
  Bytes memory(10);
  const Ticket recv = core_->irecv(1, 1, 0, memory);
  EXPECT_TRUE(core_->arm());
  core_->abort(Error(ErrorCode::closed, "enough"));
  EXPECT_FALSE(core_->arm());
  EXPECT_EQ(core_->test(recv, nullptr), TransferState::pending);
  EXPECT_TRUE(core_->progress());
  EXPECT_EQ(core_->test(recv, nullptr), TransferState::failed);
  EXPECT_TRUE(core_->arm());
  core_->begin_goodbye();
  EXPECT_FALSE(core_->progress());
  EXPECT_TRUE(core_->is_flushed());
  EXPECT_TRUE(sent().empty());
}

// Valid frames, damaged at random. The transport must report a loss with a reason, and nothing
// worse may happen.
TEST_F(StreamProtocol, DamagedStreamsHarmNobody) {
#ifdef __SANITIZE_ADDRESS__
  constexpr int kRuns = 600;
#else
  constexpr int kRuns = 3000;
#endif
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const Bytes data = pattern(1'500'000, 1);
  for (int run_number = 0; run_number < kRuns; ++run_number) {
    open();
    script_.most_at_once = 1 + random() % 5000;
    std::vector<Bytes> memory;
    std::vector<Ticket> tickets;
    for (uint64_t i = 0; i < 4; ++i) {
      memory.emplace_back(i * 3000);
      tickets.push_back(transport_->irecv(1, random() % 4, 0, memory.back()));
      tickets.push_back(transport_->isend(1, {random() % 4, 0, 0},
                                          std::span(data).first(random() % data.size())));
    }
    Bytes stream;
    for (int i = 0; i < 12; ++i) {
      FrameHeader header;
      header.type = static_cast<FrameType>(1 + random() % 9);
      header.tag = random() % 4;
      header.ticket = random() % 2 ? tickets[random() % tickets.size()] : random();
      // The ticket of an eager frame is returned credit, and there is none to return.
      if (header.type == FrameType::eager && random() % 8 != 0) header.ticket = 0;
      header.verdict = random() % 3;
      header.length = (random() % 4) * 3000;
      if (header.payload() == 0 && header.type != FrameType::announce) header.length = 0;
      const auto bytes = frame(header, pattern(header.payload(), random()));
      stream.insert(stream.end(), bytes.begin(), bytes.end());
    }
    for (uint64_t i = random() % 4; i-- > 0;)
      stream[random() % stream.size()] ^= static_cast<std::byte>(1 + random() % 255);
    if (random() % 2) stream.resize(random() % (stream.size() + 1));
    feed(stream);
    for (int i = 0; i < 30; ++i) {
      transport_->progress();
      if (random() % 4 == 0) transport_->cancel(tickets[random() % tickets.size()]);
      if (random() % 8 == 0) transport_->discard(random() % 4, random() % 4);
    }
    script_.ended = true;
    run();
    const auto event = transport_->take_event();
    ASSERT_TRUE(event);
    EXPECT_FALSE(event->detail.empty());
    for (const Ticket ticket : tickets) EXPECT_NE(transport_->test(ticket), TransferState::pending);
  }
}

}  // namespace
}  // namespace tutti::test
