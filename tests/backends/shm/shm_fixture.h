#pragma once

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tests/backends/support/world.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace tutti::test {

/// A rank in its own process, which ends with the exit code that `body` returns.
class RankProcess {
 public:
  explicit RankProcess(const std::function<int()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::alarm(50);
    int code = 99;
    try {
      code = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank process: %s\n", error.what());
    }
    ::_exit(code);
  }
  ~RankProcess() {
    kill(SIGKILL);
    wait();
  }
  RankProcess(const RankProcess&) = delete;
  pid_t pid() const { return pid_; }
  void kill(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }
  /// Returns the exit code, or minus the signal number.
  int wait() {
    if (pid_ <= 0) return 0;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

class Shm : public testing::Test {
 protected:
  Context context(int rank, int size, double seconds = 20) {
    auto context = thread_context(rank, size, make_file_store(folder_.path()));
    context.deadline = Deadline::after(seconds);
    return context;
  }
  std::unique_ptr<Transport> connect(int rank, int size, double seconds = 20) {
    const auto told = context(rank, size, seconds);
    return make_stream_transport(rank, find_backend("shm").open(told, others(rank, size)));
  }
  static bool rest(Transport& transport, Deadline deadline) {
    if (transport.progress() || !transport.arm()) return true;
    Poller poller;
    poller.watch(transport.descriptor(), EPOLLIN);
    return poller.wait(deadline.poll_milliseconds());
  }
  static std::optional<PeerEvent> wait_event(Transport& transport, double seconds = 20) {
    const auto deadline = Deadline::after(seconds);
    while (!deadline.passed()) {
      if (auto event = transport.take_event()) return event;
      rest(transport, deadline);
    }
    return {};
  }
  static TransferState finish(Transport& transport, Ticket ticket) {
    const auto deadline = Deadline::after(20);
    auto state = transport.test(ticket);
    while (state == TransferState::pending && !deadline.passed()) {
      rest(transport, deadline);
      state = transport.test(ticket);
    }
    return state;
  }
  ScratchFolder folder_;
};

}  // namespace tutti::test
