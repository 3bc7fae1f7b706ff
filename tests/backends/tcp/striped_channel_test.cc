#include "tutti/backends/tcp/striped_channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <random>
#include <string>

#include "tutti/base/error.h"

namespace tutti {
namespace {

constexpr size_t kBlock = StripedChannel::kBlockBytes;

struct Ends {
  std::vector<Descriptor> ours, theirs;
};

Ends connected(int lanes) {
  Ends ends;
  for (int i = 0; i < lanes; ++i) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) throw std::runtime_error("socketpair");
    ends.ours.emplace_back(pair[0]);
    ends.theirs.emplace_back(pair[1]);
  }
  return ends;
}

std::string noise(size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (auto& c : text) c = static_cast<char>(random());
  return text;
}

size_t write_some(Channel& channel, std::string_view bytes) {
  const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  return channel.write({&part, 1});
}

std::string read_some(Channel& channel, size_t most) {
  std::string bytes(most, '\0');
  bytes.resize(channel.read(std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

// Sends in both directions at the same time, in pieces of any size.
TEST(StripedChannel, KeepsTheOrderOfBytes) {
  for (const int lanes : {1, 2, 3, 8}) {
    SCOPED_TRACE(lanes);
    auto ends = connected(lanes);
    StripedChannel sides[] = {StripedChannel(std::move(ends.ours)),
                              StripedChannel(std::move(ends.theirs))};
    const std::string sent[] = {noise(7 * kBlock + 5, 1), noise(3'000'001, 2)};
    std::string came[2];
    size_t written[2] = {};
    std::mt19937 random(static_cast<unsigned>(lanes));
    const auto any = [&](size_t most) {
      return std::uniform_int_distribution<size_t>(0, most)(random);
    };
    while (came[0].size() < sent[0].size() || came[1].size() < sent[1].size()) {
      const size_t from = any(1);
      const std::string_view rest = std::string_view(sent[from]).substr(written[from]);
      std::vector<iovec> parts;
      for (size_t at = 0; at < rest.size() && parts.size() < 90;) {
        const size_t bytes = std::min(rest.size() - at, any(parts.size() % 2 ? 200'000 : 100));
        parts.push_back({const_cast<char*>(rest.data()) + at, bytes});
        at += bytes;
      }
      if (!parts.empty()) written[from] += sides[from].write(parts);
      std::string one(any(300'000), '\0'), other(any(1000), '\0');
      const iovec places[] = {{one.data(), one.size()}, {other.data(), other.size()}};
      size_t got = sides[1 - from].read_parts(places);
      came[from] += one.substr(0, got);
      got -= std::min(got, one.size());
      came[from] += other.substr(0, got);
    }
    EXPECT_TRUE(came[0] == sent[0]);
    EXPECT_TRUE(came[1] == sent[1]);
  }
}

// Bytes that arrive early, on a socket whose turn has not come, must not wake the owner again and
// again.
TEST(StripedChannel, SleepsUntilTheNextByteIsThere) {
  auto ends = connected(2);
  const int first = ends.theirs[0].get(), second = ends.theirs[1].get();
  Poller poller;
  StripedChannel channel(std::move(ends.ours));
  channel.watch(poller);
  ASSERT_EQ(::write(second, "later", 5), 5);
  ASSERT_TRUE(channel.arm(false));
  EXPECT_FALSE(poller.wait(20));
  std::string block = noise(kBlock, 3), came;
  while (!block.empty()) {
    const auto sent = ::send(first, block.data(), block.size(), MSG_DONTWAIT);
    if (sent > 0) block.erase(0, static_cast<size_t>(sent));
    EXPECT_TRUE(channel.arm(false));
    EXPECT_TRUE(poller.wait(1000));
    came += read_some(channel, 2 * kBlock);
  }
  while (came.size() < kBlock + 5) came += read_some(channel, 2 * kBlock);
  EXPECT_EQ(came.substr(kBlock), "later");
  ASSERT_TRUE(channel.arm(false));
  EXPECT_FALSE(poller.wait(20));
}

TEST(StripedChannel, WaitsForRoomOnlyWhereItsTurnIs) {
  auto ends = connected(2);
  Poller poller;
  StripedChannel channel(std::move(ends.ours));
  channel.watch(poller);
  const std::string much = noise(64 * kBlock, 4);
  size_t written = 0;
  while (const size_t bytes = write_some(channel, std::string_view(much).substr(written)))
    written += bytes;
  ASSERT_LT(written, much.size());
  ASSERT_TRUE(channel.arm(true));
  EXPECT_FALSE(poller.wait(20));
  StripedChannel reader(std::move(ends.theirs));
  for (size_t got = 0; got < written;) got += read_some(reader, kBlock).size();
  EXPECT_TRUE(poller.wait(1000));
}

TEST(StripedChannel, TellsTheEndAfterTheLastByte) {
  for (const size_t bytes : {size_t{3}, kBlock, kBlock + 7}) {
    SCOPED_TRACE(bytes);
    auto ends = connected(3);
    Poller poller;
    StripedChannel channel(std::move(ends.ours));
    channel.watch(poller);
    const auto sent = noise(bytes, 5);
    std::string came;
    {
      StripedChannel writer(std::move(ends.theirs));
      for (size_t written = 0; written < bytes;) {
        written += write_some(writer, std::string_view(sent).substr(written));
        if (written < bytes) came += read_some(channel, bytes);
      }
    }
    // A read that asks for more bytes than exist must return the rest.
    for (int i = 0; i < 10 && came.size() < bytes; ++i) came += read_some(channel, bytes + 1);
    EXPECT_TRUE(came == sent);
    EXPECT_THROW(
        {
          read_some(channel, 1);
          read_some(channel, 1);
        },
        Error);
    EXPECT_FALSE(poller.wait(20));  // the other sockets' ends wake nobody either
  }
}

TEST(StripedChannel, TellsThatWritingFailed) {
  auto ends = connected(2);
  Poller poller;
  StripedChannel channel(std::move(ends.ours));
  channel.watch(poller);
  ASSERT_EQ(write_some(channel, noise(10, 6)), 10u);
  ::shutdown(ends.theirs[1].get(), SHUT_RD);  // the first socket still works
  const std::string block = noise(kBlock, 7);
  std::string drained(kBlock, '\0');
  const auto write_until_it_is_told = [&] {
    for (int i = 0; i < 100; ++i) {
      write_some(channel, block);
      ::recv(ends.theirs[0].get(), drained.data(), drained.size(), MSG_DONTWAIT);
      if (!channel.arm(true)) read_some(channel, 1);
    }
  };
  EXPECT_THROW(write_until_it_is_told(), Error);
}

}  // namespace
}  // namespace tutti
