// A producer sends three messages of 3 bytes through a ring of 8 bytes and ends. Each side sleeps
// when it cannot move anything.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "tests/explore/expectations.h"
#include "tests/explore/explored.h"
#include "tests/explore/explorer.h"
#include "tutti/backends/stream/ring_buffer.h"

namespace tutti::explore {
namespace {

struct ByteRing {
  static constexpr int kMessages = 3;
  using Message = std::array<std::byte, 3>;

  RingControlOf<Explored> control;
  std::array<std::byte, 8> memory{};
  Atomic<bool> closed{false};
  Bell producer_bell, consumer_bell;  // each wakes the side of its name

  void produce() {
    RingProducerOf<Explored> out(control, memory);
    uint8_t next = 0;
    for (int i = 0; i < kMessages; ++i) {
      Message message;
      for (auto& byte : message) byte = static_cast<std::byte>(++next);
      for (size_t sent = 0; sent < message.size();) {
        out.disarm();
        const iovec rest{message.data() + sent, message.size() - sent};
        const size_t count = out.write({&rest, 1});
        sent += count;
        if (count > 0) {
          if (out.consumer_wants_bell()) consumer_bell.ring();
          continue;
        }
        producer_bell.silence();
        if (out.arm()) producer_bell.wait(kForEver);
      }
    }
    closed.store(true);
    consumer_bell.ring();
  }

  void consume() {
    RingConsumerOf<Explored> in(control, memory);
    uint8_t last = 0;
    while (!sees_end(in, last)) {
      consumer_bell.silence();
      if (in.arm() && !closed.load()) consumer_bell.wait(kForEver);
    }
    require(last == kMessages * std::tuple_size_v<Message>, "the end comes before the last byte");
  }

 private:
  // Reads until the ring is empty. Returns true if the stream has ended.
  bool sees_end(RingConsumerOf<Explored>& in, uint8_t& last) {
    for (;;) {
      in.disarm();
      Message got;
      size_t count = 0;
      bool is_over = false;
      try {
        count = in.read_until_end(got, [&] { return closed.load() ? "closed" : ""; });
      } catch (const Error&) {
        is_over = true;
      }
      if (count == 0) return is_over;
      for (size_t i = 0; i < count; ++i)
        require(got[i] == static_cast<std::byte>(++last), "a byte is not the one that was sent");
      if (in.producer_wants_bell()) producer_bell.ring();
    }
  }
};

// The ring does not hold all 9 bytes, so the producer must wait for space, too.
TEST(ByteRing, EveryByteComesBeforeTheEndAndNobodySleepsOn) {
  const auto outcome = explore([](Model& model) {
    auto ring = std::make_shared<ByteRing>();
    model.thread("producer", [=] { ring->produce(); });
    model.thread("consumer", [=] { ring->consume(); });
  });
  EXPECT_EQ(outcome.failure, "") << outcome.trace;
  EXPECT_TRUE(outcome.complete);
  RecordProperty("runs", static_cast<int>(outcome.runs));
}

}  // namespace
}  // namespace tutti::explore
