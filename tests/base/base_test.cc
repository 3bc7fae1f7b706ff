#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <set>
#include <thread>

#include "tests/support/expect_error.h"
#include "tutti/base/check.h"
#include "tutti/base/deadline.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"
#include "tutti/base/log.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

TEST(Error, CarriesCodeRankAndTensor) {
  const auto error = Error(ErrorCode::mismatch, "a line").with_rank(3).with_tensor("fc1.bias");
  EXPECT_STREQ(error.what(), "a line");
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_EQ(error.rank(), 3);
  EXPECT_EQ(error.tensor(), "fc1.bias");
  const Error plain(ErrorCode::io, "another");
  EXPECT_EQ(plain.rank(), -1);
  EXPECT_EQ(plain.tensor(), "");
}

TEST(Error, EveryCodeHasAName) {
  std::set<std::string_view> names;
  for (int code = 1; code <= 16; ++code) names.insert(to_string(static_cast<ErrorCode>(code)));
  EXPECT_EQ(names.size(), 16u);
  EXPECT_FALSE(names.contains("unknown error"));
  EXPECT_EQ(to_string(static_cast<ErrorCode>(99)), "unknown error");
}

TEST(Error, OfTheSystemEndsWithItsText) {
  const Error error = system_error("cannot open x", ENOENT);
  EXPECT_STREQ(error.what(), "cannot open x: No such file or directory");
  EXPECT_EQ(error.code(), ErrorCode::io);
}

TEST(Check, NamesFileLineAndCondition) {
  TUTTI_CHECK(1 + 1 == 2);
  const auto error = test::expect_error(ErrorCode::internal, "", [&] { TUTTI_CHECK(1 + 1 == 3); });
  EXPECT_THAT(error.what(), testing::MatchesRegex("internal check failed at base_test.cc:[0-9]+: "
                                                  "1 \\+ 1 == 3; please report it"));
}

TEST(Deadline, NeverDoesNotPass) {
  EXPECT_TRUE(Deadline::never().is_never());
  EXPECT_FALSE(Deadline::never().passed());
  EXPECT_EQ(Deadline::never().poll_milliseconds(), -1);
}

TEST(Deadline, PassesAfterItsTime) {
  EXPECT_TRUE(Deadline::after(0).passed());
  EXPECT_TRUE(Deadline::after(-1).passed());
  EXPECT_EQ(Deadline::after(-1).poll_milliseconds(), 0);
  const auto later = Deadline::after(1000);
  EXPECT_FALSE(later.passed());
  EXPECT_GT(later.poll_milliseconds(), 990'000);
  EXPECT_LE(later.poll_milliseconds(), 1'000'000);
}

TEST(Deadline, PollTimesAreRoundedUpSoThatNobodySpins) {
  // While less than a millisecond is left, the result is 1, not 0.
  const auto soon = Deadline::at(Clock::now() + std::chrono::microseconds(900));
  const int wait = soon.poll_milliseconds();
  EXPECT_TRUE(wait == 1 || soon.passed());
}

TEST(Deadline, VeryLongTimesStayInRange) {
  EXPECT_FALSE(Deadline::after(1e300).passed());
  EXPECT_FALSE(Deadline::after(std::numeric_limits<double>::infinity()).passed());
  EXPECT_EQ(Deadline::after(1e300).poll_milliseconds(), 1'000'000'000);
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(Descriptor, ClosesItsDescriptorOnce) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    Descriptor first(ends[0]);
    Descriptor second(std::move(first));
    EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): a moved-from object is empty, by
                          // contract
    EXPECT_EQ(second.get(), ends[0]);
    Descriptor other(ends[1]);
    other = std::move(second);
    EXPECT_FALSE(is_open(ends[1]));
    EXPECT_TRUE(is_open(ends[0]));
  }
  EXPECT_FALSE(is_open(ends[0]));
}

TEST(Descriptor, ReleasesToTheCaller) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    Descriptor reader(ends[0]), writer(ends[1]);
    EXPECT_EQ(reader.release(), ends[0]);
    EXPECT_FALSE(reader);
  }
  EXPECT_TRUE(is_open(ends[0]));
  ::close(ends[0]);
}

TEST(Bell, RingsUntilSilenced) {
  const Bell bell;
  Poller poller;
  poller.watch(bell.descriptor(), EPOLLIN);
  EXPECT_FALSE(poller.wait(0));
  bell.ring();
  bell.ring();
  EXPECT_TRUE(poller.wait(0));
  EXPECT_TRUE(poller.wait(0));  // level-triggered
  bell.silence();
  EXPECT_FALSE(poller.wait(0));
  bell.silence();  // a second call is harmless
  EXPECT_NE(::fcntl(bell.descriptor(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Bell, WakesAnotherThread) {
  const Bell bell;
  Poller poller;
  poller.watch(bell.descriptor(), EPOLLIN);
  std::thread ringer([&] {
    std::this_thread::sleep_for(milliseconds(20));
    bell.ring();
  });
  EXPECT_TRUE(poller.wait(30'000));
  ringer.join();
}

TEST(Poller, ChangesAndForgets) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Descriptor reader(ends[0]), writer(ends[1]);
  Poller poller;
  poller.watch(writer.get(), EPOLLIN);
  EXPECT_FALSE(poller.wait(0));
  poller.watch(writer.get(), EPOLLOUT);
  EXPECT_TRUE(poller.wait(0));
  poller.forget(writer.get());
  EXPECT_FALSE(poller.wait(0));
  const auto error = test::expect_error(ErrorCode::io, "", [&] { poller.watch(-1, EPOLLIN); });
  EXPECT_EQ(std::string(error.what()).find("cannot watch a descriptor"), 0u) << error.what();
}

TEST(Log, WritesOneLineWithItsLevel) {
  testing::internal::CaptureStderr();
  log_to_stderr(LogLevel::error, "one");
  log_to_stderr(LogLevel::warning, "two");
  log_to_stderr(LogLevel::info, "three");
  log_to_stderr(LogLevel::debug, "four");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "tutti: error: one\ntutti: warning: two\ntutti: three\ntutti: debug: four\n");
}

}  // namespace
}  // namespace tutti
