#include "tests/simulation/links/sim_channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/support/bulk.h"
#include "tutti/base/error.h"

namespace tutti::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using test::pattern;
using test::same;
using Bytes = std::vector<std::byte>;

class SimChannel : public testing::Test {
 protected:
  void open(const LinkShape& shape = {}) {
    for (auto& end : ends_) end.reset();
    link_ = std::make_unique<SimLink>(events_, 1, shape, counters_);
    for (int end = 0; end < 2; ++end) {
      link_->on_moved(end, [this, end] { ++wakes_[end]; });
      ends_[end] = link_->open(end);
    }
  }
  size_t write(int end, std::span<const std::byte> bytes) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return ends_[end]->write({&part, 1});
  }
  // Reads until there is nothing left.
  Bytes read(int end, size_t most = 1 << 20) {
    Bytes all, bytes(most);
    while (const size_t count = ends_[end]->read(bytes))
      all.insert(all.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
    return all;
  }
  std::string failure_of(int end) {
    Bytes bytes(100);
    try {
      ends_[end]->read(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_lost);
      return error.what();
    }
    return "";
  }
  void pass(Clock::duration time) {
    bool is_over = false;
    for (events_.after(time, [&] { is_over = true; }); !is_over; events_.run_next()) {
    }
  }
  // Runs all events and returns the time that this took.
  Clock::duration run() {
    const auto before = events_.now();
    while (events_.run_next()) {
    }
    return events_.now() - before;
  }

  Events events_;
  LinkCounters counters_;
  std::unique_ptr<SimLink> link_;
  std::unique_ptr<Channel> ends_[2];
  int wakes_[2] = {};
};

TEST_F(SimChannel, BytesTakeLatencyAndTheirTimeOnTheLine) {
  open({.latency = microseconds(50), .bytes_per_second = 1'000'000});  // a byte a microsecond
  const auto sent = pattern(100, 1);
  EXPECT_EQ(write(0, std::span(sent).first(60)), 60u);
  EXPECT_EQ(write(0, std::span(sent).last(40)), 40u);
  pass(microseconds(109));
  EXPECT_TRUE(read(1).empty());
  pass(microseconds(1));
  EXPECT_EQ(read(1).size(), 60u);
  EXPECT_FALSE(ends_[0]->delivered());
  pass(microseconds(40));
  EXPECT_TRUE(same(read(1), {sent.begin() + 60, sent.end()}));
  EXPECT_TRUE(ends_[0]->delivered());
}

TEST_F(SimChannel, WakesTheArmedOnceAndNobodyElse) {
  open();
  const Bytes bytes(10);
  write(0, bytes);
  pass(milliseconds(1));
  EXPECT_EQ(wakes_[1], 0);  // it is not armed
  EXPECT_FALSE(ends_[1]->arm(false));
  read(1);
  EXPECT_TRUE(ends_[1]->arm(false));
  run();
  EXPECT_EQ(wakes_[1], 0);
  for (int i = 0; i < 3; ++i) write(0, bytes);
  EXPECT_GE(run(), microseconds(10));
  EXPECT_EQ(wakes_[1], 1);
  pass(milliseconds(1));
  EXPECT_EQ(read(1).size(), 30u);
  // An armed end that reads by itself is not woken for later bytes.
  EXPECT_TRUE(ends_[1]->arm(false));
  read(1);
  write(0, bytes);
  pass(milliseconds(1));
  EXPECT_EQ(wakes_[1], 1);
  EXPECT_EQ(wakes_[0], 0);
  EXPECT_EQ(counters_.reader_wakes, 1u);
}

TEST_F(SimChannel, AFullBufferWakesItsWriterOnceItKnowsOfRoom) {
  open({.buffer = 100});
  const auto sent = pattern(150, 1);
  EXPECT_EQ(write(0, sent), 100u);
  EXPECT_EQ(write(0, sent), 0u);
  EXPECT_EQ(counters_.full_writes, 1u);
  EXPECT_TRUE(ends_[0]->arm(false));
  EXPECT_TRUE(ends_[0]->arm(true));
  pass(milliseconds(1));
  EXPECT_EQ(wakes_[0], 0);
  EXPECT_EQ(read(1).size(), 100u);
  EXPECT_EQ(write(0, sent), 0u);  // the acknowledgement has not arrived yet
  EXPECT_TRUE(ends_[0]->arm(true));
  EXPECT_EQ(run(), microseconds(10));
  EXPECT_EQ(wakes_[0], 1);
  EXPECT_FALSE(ends_[0]->arm(true));
  EXPECT_TRUE(ends_[0]->arm(false));
  EXPECT_EQ(write(0, std::span(sent).last(50)), 50u);
  pass(milliseconds(1));
  EXPECT_TRUE(same(read(1), {sent.begin() + 100, sent.end()}));
}

TEST_F(SimChannel, SplitsAnywhere) {
  open({.buffer = 777, .short_writes = 900, .short_reads = 900});
  const auto sent = pattern(50'000, 1);
  Bytes received;
  for (size_t at = 0; received.size() < sent.size();) {
    if (at < sent.size()) at += write(0, std::span(sent).subspan(at));
    pass(microseconds(10));
    const auto some = read(1, 500);
    received.insert(received.end(), some.begin(), some.end());
  }
  EXPECT_TRUE(same(sent, received));
  EXPECT_GT(counters_.single_writes, 5u);
  EXPECT_GT(counters_.single_reads, 5u);
  EXPECT_GT(counters_.short_writes, counters_.single_writes);
  EXPECT_GT(counters_.short_reads, counters_.single_reads);
}

TEST_F(SimChannel, MovesAByteAtATime) {
  open({.most_written = 1, .most_read = 1});
  const auto sent = pattern(100, 1);
  size_t writes = 0;
  for (size_t at = 0; at < sent.size(); ++writes) at += write(0, std::span(sent).subspan(at));
  EXPECT_EQ(writes, 100u);
  pass(milliseconds(1));
  EXPECT_TRUE(same(read(1), sent));
  EXPECT_EQ(counters_.single_reads, 100u);
}

TEST_F(SimChannel, ReadsIntoSeveralParts) {
  open();
  const auto sent = pattern(100, 1);
  Bytes received(100);
  write(0, sent);
  pass(milliseconds(1));
  const iovec parts[] = {{received.data(), 30}, {received.data() + 30, 70}};
  EXPECT_EQ(ends_[1]->read_parts(parts), 100u);
  EXPECT_TRUE(same(sent, received));
}

TEST_F(SimChannel, WhatComesBetweenALookAndArmingIsSeenByArming) {
  open({.buffer = 10, .late = 1000});
  const Bytes bytes(10);
  EXPECT_EQ(write(0, Bytes(11)), 0u);
  EXPECT_FALSE(ends_[0]->arm(true));
  EXPECT_EQ(write(0, bytes), 10u);
  pass(milliseconds(1));
  EXPECT_TRUE(read(1).empty());
  EXPECT_FALSE(ends_[1]->arm(false));
  Bytes place(10);
  EXPECT_EQ(ends_[1]->read(place), 10u);
  EXPECT_EQ(counters_.late, 2u);
}

TEST_F(SimChannel, AResetIsSeenByBothAndLosesWhatIsOnItsWay) {
  for (const bool fails : {false, true}) {
    open({.writing_fails = fails});
    counters_ = {};
    wakes_[0] = wakes_[1] = 0;
    const Bytes bytes(10);
    write(0, bytes);
    pass(milliseconds(1));
    write(0, bytes);
    EXPECT_TRUE(ends_[0]->arm(false));
    link_->reset();
    run();
    EXPECT_EQ(wakes_[0], 1);
    Bytes place(100);
    EXPECT_EQ(ends_[1]->read(place), 10u);  // the bytes that had arrived
    for (int end = 0; end < 2; ++end) {
      EXPECT_FALSE(ends_[end]->arm(false));
      EXPECT_EQ(failure_of(end), "connection reset");
      if (fails)
        EXPECT_THROW(write(end, bytes), Error);
      else
        EXPECT_EQ(write(end, bytes), 0u);
    }
    EXPECT_EQ(counters_.lost, 10u);
    EXPECT_EQ(counters_.resets, 1u);
  }
}

TEST_F(SimChannel, AfterAKillThePeerReadsWhatWasOnItsWay) {
  open();
  const auto sent = pattern(1000, 1);
  write(0, sent);
  pass(microseconds(5));
  EXPECT_TRUE(ends_[1]->arm(false));
  link_->kill(0);
  EXPECT_EQ(counters_.kills, 1u);
  run();
  EXPECT_EQ(wakes_[1], 1);
  Bytes place(2000);
  EXPECT_EQ(ends_[1]->read(place), 1000u);
  EXPECT_EQ(failure_of(1), "");  // the end of the stream takes time, as bytes do
  EXPECT_TRUE(ends_[1]->arm(false));
  run();
  EXPECT_EQ(wakes_[1], 2);
  EXPECT_EQ(failure_of(1), "end of file");
  EXPECT_EQ(failure_of(1), "end of file");
  EXPECT_EQ(counters_.ends, 2u);
}

TEST_F(SimChannel, ClosingWithBytesUnreadTakesBackWhatHasNotLeft) {
  open({.bytes_per_second = 1'000'000});
  const Bytes bytes(1000);
  write(1, Bytes(10));
  pass(milliseconds(1));
  write(0, Bytes(5));
  write(0, bytes);
  pass(microseconds(5));
  ends_[0].reset();
  pass(milliseconds(10));
  Bytes place(2000);
  EXPECT_EQ(ends_[1]->read(place), 5u);
  EXPECT_EQ(failure_of(1), "connection reset");
  EXPECT_EQ(counters_.resets_by_closing, 1u);
}

TEST_F(SimChannel, BytesForAClosedEndResetTheConnection) {
  open({.bytes_per_second = 1'000'000});
  write(0, Bytes(1000));  // takes 1 ms
  pass(microseconds(1));
  ends_[0].reset();
  write(1, Bytes(10));  // arrives after 20 us
  pass(milliseconds(5));
  Bytes place(2000);
  EXPECT_EQ(failure_of(1), "connection reset");
  EXPECT_EQ(counters_.resets_by_closing, 1u);
  EXPECT_EQ(counters_.lost, 1010u);
}

TEST_F(SimChannel, AHalfOpenLinkIsSilent) {
  open({.buffer = 100});
  const Bytes bytes(60);
  write(0, bytes);
  EXPECT_TRUE(ends_[1]->arm(false));
  link_->half_open();
  EXPECT_EQ(write(0, bytes), 40u);
  EXPECT_EQ(write(0, bytes), 0u);  // the host keeps bytes that are not acknowledged
  EXPECT_EQ(write(1, bytes), 60u);
  EXPECT_TRUE(ends_[1]->arm(false));
  EXPECT_TRUE(ends_[0]->arm(true));
  run();
  pass(std::chrono::seconds(5));
  EXPECT_EQ(wakes_[0] + wakes_[1], 0);
  EXPECT_TRUE(read(1).empty());
  EXPECT_FALSE(ends_[0]->delivered());
  EXPECT_GE(ends_[1]->quiet_seconds(), 5);
  EXPECT_EQ(counters_.lost, 160u);
  // The peer does not learn of the close either.
  ends_[0].reset();
  pass(std::chrono::seconds(5));
  EXPECT_EQ(failure_of(1), "");
  link_->reset();
  EXPECT_EQ(failure_of(1), "connection reset");
  EXPECT_EQ(counters_.lost, 160u);
}

TEST_F(SimChannel, AStallHoldsEverythingUpUntilItIsOver) {
  open();
  const auto sent = pattern(30, 1);
  write(0, std::span(sent).first(20));
  EXPECT_TRUE(ends_[1]->arm(false));
  link_->stall(milliseconds(7));
  write(0, std::span(sent).last(10));
  pass(milliseconds(6));
  EXPECT_EQ(wakes_[1], 0);
  EXPECT_TRUE(ends_[1]->arm(false));
  EXPECT_EQ(run(), milliseconds(1));
  EXPECT_EQ(wakes_[1], 1);
  EXPECT_TRUE(same(read(1), sent));
  EXPECT_EQ(counters_.stalls, 1u);
  // The end of the stream is stalled too.
  link_->stall(milliseconds(7));
  ends_[0].reset();
  EXPECT_TRUE(ends_[1]->arm(false));
  EXPECT_EQ(run(), milliseconds(7));
  EXPECT_EQ(failure_of(1), "end of file");
}

TEST_F(SimChannel, ASlowLinkKeepsTheOrder) {
  open({.latency = milliseconds(2)});
  const auto sent = pattern(20, 1);
  write(0, std::span(sent).first(10));
  link_->slow(microseconds(1), 1'000'000);
  write(0, std::span(sent).last(10));
  pass(milliseconds(1));
  EXPECT_TRUE(read(1).empty());
  pass(milliseconds(2));
  EXPECT_TRUE(same(read(1), sent));
  link_->slow(milliseconds(50), 1000);
  write(0, sent);
  pass(milliseconds(69));
  EXPECT_TRUE(read(1).empty());
  pass(milliseconds(1));
  EXPECT_TRUE(same(read(1), sent));
  EXPECT_EQ(counters_.slow_links, 2u);
}

TEST_F(SimChannel, TellsHowLongThePeerWasQuiet) {
  open();
  pass(milliseconds(100));
  EXPECT_DOUBLE_EQ(ends_[0]->quiet_seconds(), 0.1);
  write(1, Bytes(10));
  pass(milliseconds(50));
  EXPECT_NEAR(ends_[0]->quiet_seconds(), 0.05, 0.001);
  EXPECT_NEAR(ends_[1]->quiet_seconds(), 0.15, 0.001);
}

}  // namespace
}  // namespace tutti::simulation
