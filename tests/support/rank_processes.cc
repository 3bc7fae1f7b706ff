// Ranks as processes. Each child sends its failures through a pipe.

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include <algorithm>
#include <csignal>

#include "tests/support/network_namespaces.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/backends/store.h"
#include "tutti/base/descriptor.h"

namespace tutti::test {

namespace {

struct Child {
  pid_t pid = -1;
  Descriptor pipe;
  std::string complaint;
  bool silent = false;  // has closed the pipe, which it does at its end
};

struct Pipe {
  Descriptor read_end, write_end;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error("cannot make a pipe", errno);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// Called in the child. Returns whether LeakSanitizer finds memory that nothing points to. It checks
// by itself only when a process returns from main(), which a forked rank must not do, because the
// parent's tests would follow there.
bool loses_memory() {
#ifdef __SANITIZE_ADDRESS__
  return __lsan_do_recoverable_leak_check() != 0;
#else
  return false;
#endif
}

// Runs the rank in the child. Returns its failures, one line each, or "".
std::string be_rank(const std::function<Options()>& options, const RankFunction& body) {
  std::string complaint;
  testing::TestPartResultArray results;
  {
    testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &results);
    try {
      const auto communicator = Communicator::create(options());
      body(*communicator);
    } catch (const std::exception& error) {
      complaint += fmt::format("{}\n", error.what());
    }
  }
  for (int i = 0; i < results.size(); ++i) {
    const auto& result = results.GetTestPartResult(i);
    if (result.failed())
      complaint += fmt::format("{}:{}: {}\n", result.file_name() ? result.file_name() : "",
                               result.line_number(), result.message());
  }
  return complaint;
}

int report(const Descriptor& pipe, const std::string& complaint) {
  for (size_t sent = 0; sent < complaint.size();) {
    const auto count = ::write(pipe.get(), complaint.data() + sent, complaint.size() - sent);
    if (count < 0 && errno != EINTR) return 2;
    sent += static_cast<size_t>(std::max<ssize_t>(count, 0));
  }
  return complaint.empty() ? 0 : 1;
}

// Reads the children's failures until all have closed their pipes or the deadline passes.
void listen(std::vector<Child>& children, Deadline deadline) {
  std::vector<pollfd> pipes;
  for (const auto& child : children) pipes.push_back({child.pipe.get(), POLLIN, 0});
  auto open = children.size();
  while (open > 0) {
    if (::poll(pipes.data(), pipes.size(), deadline.poll_milliseconds()) == 0) return;
    for (size_t i = 0; i < pipes.size(); ++i) {
      if (pipes[i].fd < 0 || pipes[i].revents == 0) continue;
      char text[4096];
      const auto count = ::read(pipes[i].fd, text, sizeof text);
      if (count > 0) {
        children[i].complaint.append(text, static_cast<size_t>(count));
      } else if (count == 0 || errno != EINTR) {
        pipes[i].fd = -1;
        children[i].silent = true;
        --open;
      }
    }
  }
}

void await(std::vector<Child>& children, double seconds, int dies = -1) {
  listen(children, Deadline::after(seconds));
  for (size_t rank = 0; rank < children.size(); ++rank) {
    auto& child = children[rank];
    if (!child.silent) ::kill(child.pid, SIGKILL);
    int code = wait_for_child(child.pid, 5);
    if (static_cast<int>(rank) == dies) code = code > 128 ? 0 : -1;  // 128 and the signal
    if (!child.silent)
      ADD_FAILURE() << "rank " << rank << " did not end within " << seconds << " s";
    else if (!child.complaint.empty() || code != 0)
      ADD_FAILURE() << "rank " << rank << " (exit code " << code << "): " << child.complaint;
  }
}

// Starts children with `start`, a function that forks and runs its argument in the child.
using Start = std::function<pid_t(int rank, const std::function<int()>&)>;

std::vector<Child> start_children(int size, const Start& start,
                                  const std::function<Options(int)>& options,
                                  const RankFunction& body) {
  std::fflush(nullptr);
  std::vector<Child> children;
  for (int rank = 0; rank < size; ++rank) {
    auto pipe = make_pipe();
    const auto run = [&] {
      auto complaint = be_rank([&] { return options(rank); }, body);
      if (loses_memory()) complaint += "it loses memory: see the report of LeakSanitizer\n";
      return report(pipe.write_end, complaint);
    };
    const pid_t pid = start(rank, run);
    if (pid < 0) throw system_error("cannot fork a rank", errno);
    children.push_back({pid, std::move(pipe.read_end), ""});
  }
  return children;
}

pid_t fork_and_run(const std::function<int()>& run) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int code = run();
    std::fflush(nullptr);
    ::_exit(code);
  }
  return child;
}

Options rank_options(int rank, int size, const std::string& store, const Tune& tune) {
  Options options;
  options.rank = options.local_rank = rank;
  options.size = options.local_size = size;
  options.launcher = "explicit";
  options.store = store;
  options.secret = "secret of a test";
  options.connect_timeout = 20;
  if (tune) tune(options);
  return options;
}

}  // namespace

void run_processes(int size, const RankFunction& body, const Tune& tune, double seconds, int dies) {
  const ScratchFolder folder;
  auto children = start_children(
      size, [](int, const auto& run) { return fork_and_run(run); },
      [&](int rank) { return rank_options(rank, size, "file://" + folder.path(), tune); }, body);
  await(children, seconds, dies);
}

void run_hosts(const std::vector<int>& layout, const RankFunction& body, const Tune& tune,
               double seconds) {
  if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty())
    GTEST_SKIP() << "no network namespaces: " << reason;
  constexpr int kPort = 7000;  // any port, because the namespaces are new
  const int size = static_cast<int>(layout.size());
  const NetworkNamespaces hosts(*std::max_element(layout.begin(), layout.end()) + 1);
  const auto address = hosts.address(0);
  const auto url = fmt::format("tcp://{}:{}", address, kPort);
  auto children = start_children(
      size,
      [&](int rank, const auto& run) {
        return hosts.start(layout[static_cast<size_t>(rank)], run);
      },
      [&](int rank) { return rank_options(rank, size, url, tune); }, body);
  std::unique_ptr<TcpStoreServer> server;
  hosts.within(0, [&] {
    server = std::make_unique<TcpStoreServer>(address, kPort, rank_options(0, 1, "", {}).secret);
  });
  await(children, seconds);
}

}  // namespace tutti::test
