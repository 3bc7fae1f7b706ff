#include "tools/run/front.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tools/inheritance.h"
#include "tools/run/output.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::run {

namespace {

constexpr int kAsking[] = {SIGINT, SIGTERM, SIGHUP};
// Seconds that the keeper (front.h) has to end after the second of the signals kAsking. Then the
// front kills it.
constexpr double kKeeperSeconds = 5;
constexpr double kEndSeconds = 5;  // seconds until killed processes must be gone

Descriptor signals_of(const std::vector<int>& numbers) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : numbers) ::sigaddset(&set, number);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  Descriptor descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor) throw system_error("cannot watch signals", errno);
  return descriptor;
}

// Reads /proc/PID/stat: the process's state and then its parent follow the name.
bool is_child(const std::filesystem::path& process) {
  std::ifstream file(process / "stat");
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(") ");
  if (name_end == line.npos || line.size() < name_end + 4) return false;
  const auto rest = line.substr(name_end + 4);
  return rest.substr(0, rest.find(' ')) == std::to_string(::getpid());
}

std::vector<pid_t> children() {
  std::vector<pid_t> found;
  std::error_code status;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", status))
    if (const auto pid = parse_integer(entry.path().filename().string(), 1, 1 << 30))
      if (is_child(entry.path())) found.push_back(static_cast<pid_t>(*pid));
  return found;
}

// Kills all descendants except `spared`, the children that this process had before the job. A
// killed child's own children become this process's children, so the next round kills them.
void end_descendants(const std::vector<pid_t>& spared) {
  const auto deadline = Deadline::after(kEndSeconds);
  while (!deadline.passed()) {
    auto found = children();
    std::erase_if(found, [&](pid_t pid) {
      return std::find(spared.begin(), spared.end(), pid) != spared.end();
    });
    if (found.empty()) return;
    for (const pid_t pid : found) ::kill(pid, SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool asks_to_end(int number) {
  return std::find(std::begin(kAsking), std::end(kAsking), number) != std::end(kAsking);
}

// Runs the front until it exits. It writes nothing while the keeper lives, so nothing can block it.
[[noreturn]] void be_front(pid_t keeper, const std::vector<pid_t>& spared, const Descriptor& orders,
                           const Descriptor& signals) {
  int asked = 0, asking_signal = 0;
  auto patience = Deadline::never();
  while (true) {
    pollfd entry{signals.get(), POLLIN, 0};
    if (::poll(&entry, 1, patience.poll_milliseconds()) == 0) ::kill(keeper, SIGKILL);
    signalfd_siginfo info;
    while (::read(signals.get(), &info, sizeof info) == sizeof info) {
      const int number = static_cast<int>(info.ssi_signo);
      if (number == SIGCHLD) continue;
      ::send(orders.get(), &number, sizeof number, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (!asks_to_end(number)) continue;
      asking_signal = number;
      if (++asked == 2) patience = Deadline::after(kKeeperSeconds);
    }
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid != keeper) continue;
      end_descendants(spared);
      if (WIFEXITED(status)) ::_exit(WEXITSTATUS(status));
      if (asked >= 2) ::_exit(128 + asking_signal);
      write_all(STDERR_FILENO,
                fmt::format("tutti-run: its process {} was killed by signal {} ({}), and so were "
                            "all ranks\n",
                            keeper, WTERMSIG(status), ::strsignal(WTERMSIG(status))),
                Deadline::after(1));
      ::_exit(128 + WTERMSIG(status));
    }
  }
}

}  // namespace

Keeper Keeper::divide() {
  ::signal(SIGPIPE, SIG_IGN);  // the output's reader may leave early, like head
  // The keeper blocks these signals too. The front also gets every signal sent to their process
  // group.
  std::vector<int> watched = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD};
  // Watched signals are blocked, and a blocked signal reaches the front even if it is ignored.
  if (!ignores_hangup()) watched.push_back(SIGHUP);
  auto signals = signals_of(watched);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw system_error("cannot make a pair of sockets", errno);
  Descriptor front_end(ends[0]), keeper_end(ends[1]);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // A shell may have started processes in the background before it became this process by exec.
  const auto spared = children();
  const pid_t keeper = ::fork();
  if (keeper < 0) throw system_error("cannot start a process", errno);
  if (keeper > 0) {
    keeper_end.reset();
    be_front(keeper, spared, front_end, signals);
  }
  // The keeper has its own name, so that `killall tutti-run` kills only fronts. Keepers then end
  // the ranks.
  ::prctl(PR_SET_NAME, "tutti-keeper");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  front_end.reset();
  return {std::move(keeper_end), signals_of({SIGCHLD})};
}

std::optional<int> Keeper::next_order() const {
  int number = 0;
  const auto got = ::recv(orders_.get(), &number, sizeof number, MSG_DONTWAIT);
  if (got == sizeof number) return number;
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  end_descendants({});
  ::_exit(128 + SIGKILL);
}

void Keeper::reap_adopted(const std::function<bool(pid_t)>& is_rank) const {
  signalfd_siginfo ignored;
  while (::read(ends_.get(), &ignored, sizeof ignored) == sizeof ignored) {
  }
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    // If the ended process is a rank, its owner reaps it. This call stops here, and the next call
    // finds the other ended processes.
    if (is_rank(info.si_pid)) return;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

}  // namespace tutti::run
