#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tools/run/remote_protocol.h"
#include "tutti/base/error.h"

namespace tutti::run {
namespace {

const std::string kPreamble(FrameReader::kPreamble);

TEST(Frames, ComeBackInAnyPieces) {
  const std::string stream = encode_frame(FrameKind::output, "hello") +
                             encode_frame(FrameKind::errors, "") +
                             encode_frame(FrameKind::end, std::string("a\0b", 3));
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    FrameReader reader(false);
    std::vector<Frame> frames;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.take(stream.substr(at, piece));
      while (auto frame = reader.next()) frames.push_back(*frame);
    }
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(frames[0].kind, FrameKind::output);
    EXPECT_EQ(frames[0].payload, "hello");
    EXPECT_EQ(frames[1].payload, "");
    EXPECT_EQ(frames[2].payload.size(), 3u);
  }
}

TEST(Frames, FollowAGreeting) {
  const std::string stream = "Welcome to host b\n" + kPreamble + encode_frame(FrameKind::pid, "17");
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    FrameReader reader(true);
    std::string noise;
    std::optional<Frame> found;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.take(stream.substr(at, piece));
      if (auto frame = reader.next()) found = frame;
      noise += reader.take_noise();
    }
    EXPECT_EQ(noise, "Welcome to host b\n");
    ASSERT_TRUE(found);
    EXPECT_EQ(found->payload, "17");
  }
}

TEST(Frames, GarbageIsRefused) {
  FrameReader unknown(false);
  unknown.take("Zabcd");
  EXPECT_THROW(unknown.next(), Error);
  FrameReader huge(false);
  huge.take("O\xff\xff\xff\xff");
  EXPECT_THROW(huge.next(), Error);
}

TEST(Frames, SurviveRandomBytes) {
  const unsigned seed = 20261121;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes(random() % 40, ' ');
    for (auto& c : bytes)
      c = static_cast<char>(random() % 4 ? random() : "RSOEPXF\0"[random() % 8]);
    try {
      FrameReader reader(false);
      reader.take(bytes);
      while (const auto frame = reader.next()) decode_start(frame->payload);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
    }
  }
}

TEST(StartRequest, ComesBack) {
  const StartRequest request{"secret",
                             "/home/a b",
                             {{"A", "x=y"}, {"B", ""}, {"C", "line\nline"}},
                             {"./program", "", "--flag=it's"}};
  const auto back = decode_start(encode_start(request));
  EXPECT_EQ(back.secret, request.secret);
  EXPECT_EQ(back.folder, request.folder);
  EXPECT_EQ(back.variables, request.variables);
  EXPECT_EQ(back.arguments, request.arguments);
}

TEST(StartRequest, IsRefusedInPart) {
  const auto text = encode_start({"s", "/", {{"A", "1"}}, {"p"}});
  for (size_t length = 0; length < text.size(); ++length)
    EXPECT_THROW(decode_start(text.substr(0, length)), Error) << length;
}

TEST(EncodedEnd, ComesBack) {
  EXPECT_EQ(decode_end(encode_end({.code = 3, .signal = 0})).code, 3);
  EXPECT_EQ(decode_end(encode_end({.code = 0, .signal = 9})).signal, 9);
  for (const char* text : {"", "code", "code x", "signal 999", "code 1 2", "other 1"})
    EXPECT_THROW(decode_end(text), Error) << text;
}

}  // namespace
}  // namespace tutti::run
