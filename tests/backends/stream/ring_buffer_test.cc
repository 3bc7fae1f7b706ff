#include "tutti/backends/stream/ring_buffer.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/backends/support/world.h"
#include "tutti/backends/stream/ring_channel.h"

namespace tutti::test {
namespace {

struct Ring {
  explicit Ring(size_t bytes) : memory(bytes) {}
  RingControl control;
  std::vector<std::byte> memory;
  RingProducer producer{control, memory};
  RingConsumer consumer{control, memory};
};

size_t write(Ring& ring, std::span<const std::byte> bytes) {
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return ring.producer.write({&part, 1});
}

TEST(RingBuffer, TakesWhatFitsAndGivesItBackInOrder) {
  Ring ring(64);
  const auto data = pattern(1000, 1);
  std::vector<std::byte> out(1000);
  EXPECT_EQ(ring.consumer.read(out), 0u);
  EXPECT_EQ(write(ring, data), 64u);
  EXPECT_EQ(write(ring, data), 0u);
  EXPECT_EQ(ring.consumer.read(std::span(out).first(10)), 10u);
  EXPECT_EQ(write(ring, std::span(data).subspan(64)), 10u);  // wraps around the end
  EXPECT_EQ(ring.consumer.read(std::span(out).subspan(10)), 64u);
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 74, data.begin()));
}

TEST(RingBuffer, GathersManyParts) {
  Ring ring(64);
  const auto data = pattern(90, 2);
  auto* at = const_cast<std::byte*>(data.data());
  const iovec parts[] = {{at, 10}, {nullptr, 0}, {at + 10, 30}, {at + 40, 50}};
  EXPECT_EQ(ring.producer.write(parts), 64u);
  std::vector<std::byte> out(64);
  EXPECT_EQ(ring.consumer.read(out), 64u);
  EXPECT_TRUE(std::equal(out.begin(), out.end(), data.begin()));
}

TEST(RingBuffer, ImpossiblePositionsAreErrors) {
  const auto data = pattern(10, 3);
  std::vector<std::byte> out(100);
  for (const uint64_t bad : {uint64_t{65}, uint64_t{1} << 40, ~uint64_t{0}}) {
    Ring ring(64);
    ring.control.head.store(bad);
    EXPECT_THROW(ring.consumer.read(out), Error);
    EXPECT_THROW(ring.consumer.arm(), Error);
    Ring other(64);
    ASSERT_EQ(write(other, data), 10u);
    other.control.tail.store(bad);
    EXPECT_THROW(write(other, pattern(64, 1)), Error);
    EXPECT_THROW(other.producer.arm(), Error);
  }
  // A position that moves back is refused too.
  Ring ring(64);
  write(ring, data);
  ring.consumer.read(out);
  ring.control.head.store(9);
  EXPECT_THROW(ring.consumer.read(out), Error);
}

TEST(RingBuffer, SleepersAreRungOnce) {
  Ring ring(64);
  const auto data = pattern(64, 4);
  std::vector<std::byte> out(64);
  EXPECT_FALSE(ring.producer.consumer_wants_bell());
  EXPECT_TRUE(ring.consumer.arm());
  write(ring, data);
  EXPECT_TRUE(ring.producer.consumer_wants_bell());
  EXPECT_FALSE(ring.producer.consumer_wants_bell());
  EXPECT_FALSE(ring.consumer.arm());
  EXPECT_TRUE(ring.producer.arm());
  ring.consumer.read(out);
  EXPECT_TRUE(ring.consumer.producer_wants_bell());
  EXPECT_FALSE(ring.consumer.producer_wants_bell());
}

// A side that wakes by itself is not rung. If the other side had already taken its request,
// disarm() returns true, because a ring is on its way.
TEST(RingBuffer, ASideThatIsAwakeAgainIsNotRung) {
  Ring ring(64);
  const auto data = pattern(64, 4);
  std::vector<std::byte> out(64);
  EXPECT_TRUE(ring.consumer.arm());
  EXPECT_FALSE(ring.consumer.disarm());
  write(ring, data);
  EXPECT_FALSE(ring.producer.consumer_wants_bell());
  EXPECT_TRUE(ring.producer.arm());
  EXPECT_FALSE(ring.producer.disarm());
  ring.consumer.read(out);
  EXPECT_FALSE(ring.consumer.producer_wants_bell());

  EXPECT_TRUE(ring.consumer.arm());
  write(ring, data);
  EXPECT_TRUE(ring.producer.consumer_wants_bell());
  EXPECT_TRUE(ring.consumer.disarm());
  EXPECT_FALSE(ring.consumer.disarm());
  EXPECT_TRUE(ring.producer.arm());
  ring.consumer.read(out);
  EXPECT_TRUE(ring.consumer.producer_wants_bell());
  EXPECT_TRUE(ring.producer.disarm());
}

TEST(RingBuffer, PiecesOfAnySizeComeOutInOrder) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Ring ring(4096);
  const auto data = pattern(1 << 20, seed);
  std::vector<std::byte> out(data.size());
  std::mt19937_64 random(seed);
  for (size_t written = 0, read = 0; read < out.size();) {
    const size_t count = std::min<size_t>(random() % 9000, data.size() - written);
    written += write(ring, std::span(data).subspan(written, count));
    const size_t wanted = std::min<size_t>(1 + random() % 9000, out.size() - read);
    read += ring.consumer.read(std::span(out).subspan(read, wanted));
  }
  EXPECT_TRUE(out == data);
}

TEST(RingBuffer, SizesStayReasonable) {
  EXPECT_EQ(ring_bytes_for(1), 1u << 20);
  EXPECT_EQ(ring_bytes_for(2), 1u << 20);
  EXPECT_EQ(ring_bytes_for(8), 1u << 20);
  EXPECT_EQ(ring_bytes_for(16), 256u << 10);
  EXPECT_EQ(ring_bytes_for(1000), 64u << 10);
}

}  // namespace
}  // namespace tutti::test
