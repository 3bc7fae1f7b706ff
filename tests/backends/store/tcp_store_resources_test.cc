// The resources that a store and its clients use, and their behaviour when none are left.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "tests/support/seconds_since.h"
#include "tutti/backends/store.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using test::seconds_since;

constexpr char kJobSecret[] = "a secret of the job";

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(TcpStoreTest, AServerWithoutDescriptorsWaitsForThemWithoutSpinning) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "ubsan asks through a pipe whether memory can be read, and there is none left";
#endif
  int ports[2];
  ASSERT_EQ(::pipe(ports), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    int port = 0;
    if (::read(ports[0], &port, sizeof port) != sizeof port) ::_exit(2);
    try {
      connect_tcp_store("127.0.0.1", port, kJobSecret, Deadline::after(20))->set("served", "yes");
      ::_exit(0);
    } catch (const std::exception&) {
      ::_exit(1);
    }
  }
  TcpStoreServer server("127.0.0.1", 0, kJobSecret);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{3, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const double before = processor_seconds();
  const int port = server.port();
  EXPECT_EQ(::write(ports[1], &port, sizeof port), ssize_t{sizeof port});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(processor_seconds() - before, 0.05);
  EXPECT_EQ(server.local()->try_get("served"), std::nullopt);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(server.local()->get("served", Deadline::after(20)), "yes");
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(ports[0]);
  ::close(ports[1]);
}

TEST(TcpStoreTest, AnIdleServerAndItsWaitersUseNoProcessor) {
  TcpStoreServer server("127.0.0.1", 0, kJobSecret);
  const auto store = connect_tcp_store("127.0.0.1", server.port(), kJobSecret, Deadline::after(10));
  std::thread waiter([&] { EXPECT_EQ(store->get("key", Deadline::after(60)), "v"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const double before = processor_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(processor_seconds() - before, 0.02);
  server.local()->set("key", "v");
  waiter.join();
}

// A process without free descriptors reports immediately that its own limit is the cause, and does
// not blame the store.
TEST(TcpStoreTest, AClientWithoutDescriptorsNamesItsLimit) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "ubsan asks through a pipe whether memory can be read, and there is none left";
#endif
  TcpStoreServer server("127.0.0.1", 0, kJobSecret);
  int refusals = 0;
  for (rlim_t left = 0; left < 8; ++left) {
    const pid_t child = ::fork();
    if (child == 0) {
      const int lowest = ::dup(0);
      ::close(lowest);
      for (int fd = lowest + 1; fd < 1024; ++fd) ::close(fd);
      const rlimit limit{static_cast<rlim_t>(lowest) + left, 1 << 10};
      ::setrlimit(RLIMIT_NOFILE, &limit);
      const auto begin = Clock::now();
      try {
        connect_tcp_store("127.0.0.1", server.port(), kJobSecret, Deadline::after(20))
            ->set("a", "b");
        ::_exit(0);
      } catch (const std::exception& error) {
        const std::string text = error.what();
        const bool says_it = text.find("cannot open a socket to the store at 127.0.0.1:") == 0 &&
                             text.find("Too many open files") != text.npos &&
                             text.find("allow more with ulimit -n") != text.npos;
        std::fprintf(stderr, "%d left: %s\n", static_cast<int>(left), error.what());
        ::_exit(says_it && seconds_since(begin) < 3 ? 1 : 2);
      }
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << status;
    EXPECT_LE(WEXITSTATUS(status), 1) << left << " descriptors left";
    refusals += WEXITSTATUS(status) != 0;
  }
  EXPECT_GE(refusals, 4);  // three of Asio, and the socket
  EXPECT_LE(refusals, 6);
}

}  // namespace
}  // namespace tutti
