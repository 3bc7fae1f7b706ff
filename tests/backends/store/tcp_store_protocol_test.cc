#include "tutti/backends/store/tcp_store_protocol.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/support/expect_error.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

std::string body(const std::string& frame) {
  EXPECT_EQ(decode_frame_length(frame), frame.size() - kStoreFrameHeader);
  return frame.substr(kStoreFrameHeader);
}

TEST(TcpStoreProtocolTest, FramesComeBackAsTheyWere) {
  const StoreRequest request{.id = 0x1122334455667788,
                             .op = StoreOp::add,
                             .argument = static_cast<uint64_t>(-3),
                             .key = std::string("k\0y", 3),
                             .value = "value"};
  const auto back = decode_request(body(encode(request)));
  EXPECT_EQ(back.id, request.id);
  EXPECT_EQ(back.op, request.op);
  EXPECT_EQ(static_cast<int64_t>(back.argument), -3);
  EXPECT_EQ(back.key, request.key);
  EXPECT_EQ(back.value, request.value);

  const auto reply = decode_reply(
      body(encode(StoreReply{.id = 9, .status = StoreStatus::timeout, .value = "late"})));
  EXPECT_EQ(reply.id, 9u);
  EXPECT_EQ(reply.status, StoreStatus::timeout);
  EXPECT_EQ(reply.value, "late");
}

// The bytes on the wire. A change of them needs a new kWireVersion.
TEST(TcpStoreProtocolTest, TheBytesAreThese) {
  EXPECT_EQ(encode(StoreRequest{
                .id = 1, .op = StoreOp::get, .argument = 0x0203, .key = "k", .value = {}}),
            std::string("\x14\0\0\0"
                        "\x01\0\0\0\0\0\0\0"
                        "\x04"
                        "\x03\x02\0\0\0\0\0\0"
                        "\x01\0"
                        "k",
                        24));
  EXPECT_EQ(encode(StoreReply{.id = 2, .status = StoreStatus::absent, .value = {}}),
            std::string("\x09\0\0\0"
                        "\x02\0\0\0\0\0\0\0"
                        "\x01",
                        13));
}

TEST(TcpStoreProtocolTest, DamagedFramesAreRefusedOrHarmless) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto good = body(encode(
      StoreRequest{.id = 7, .op = StoreOp::set, .key = "key", .value = std::string(50, 'v')}));
  int refused = 0, taken = 0;
  for (int i = 0; i < 100'000; ++i) {
    auto frame = good.substr(0, random() % (good.size() + 1));
    for (unsigned flips = random() % 4; flips > 0 && !frame.empty(); --flips)
      frame[random() % frame.size()] = static_cast<char>(random());
    try {
      const auto request = decode_request(frame);
      EXPECT_TRUE(request.key.size() >= 1 && request.key.size() <= kMaxStoreKeyBytes);
      EXPECT_LE(request.key.size() + request.value.size(), frame.size());
      ++taken;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
      ++refused;
    }
    try {
      EXPECT_LE(decode_reply(frame).value.size(), frame.size());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(taken, 1000);
  test::expect_error(ErrorCode::corrupt_data,
                     "damaged frame of the TCP store: a request of 2 bytes",
                     [] { decode_request("ab"); });
  test::expect_error(ErrorCode::corrupt_data, "damaged frame of the TCP store: length 4294967295",
                     [] { decode_frame_length("\xff\xff\xff\xff"); });
}

}  // namespace
}  // namespace tutti
