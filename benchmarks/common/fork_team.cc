#include "benchmarks/common/fork_team.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#include "benchmarks/common/measure.h"

namespace tutti::benchmarks {

namespace {

struct alignas(128) Line {
  std::atomic<uint64_t> arrived{0};
  uint32_t length = 0;
  char piece[ForkTeam::kPieceBytes] = {};
};

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

void enter_namespace(const std::string& name) {
  const std::string path = "/run/netns/" + name;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path);
  if (::setns(descriptor, CLONE_NEWNET) != 0) fail("entering network namespace " + name);
  ::close(descriptor);
}

}  // namespace

struct ForkTeam::Page {
  Line lines[kMostRanks];
};

void ForkTeam::wait_for_round(uint64_t round) {
  // A rank that waits long must not take a core from ranks that still measure.
  constexpr int kSpins = 2000;
  constexpr useconds_t kNap_us = 20;
  const bool crowded = size_ > static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  for (int other = 0; other < size_; ++other)
    for (int spins = 0; page_.lines[other].arrived.load(std::memory_order_acquire) < round; ++spins)
      if (crowded || spins > kSpins) ::usleep(kNap_us);
}

void ForkTeam::barrier() {
  page_.lines[rank_].arrived.store(++round_, std::memory_order_release);
  wait_for_round(round_);
}

std::vector<std::string> ForkTeam::exchange(const std::string& own) {
  if (own.size() > kPieceBytes) throw std::length_error("a piece is too long to be exchanged");
  auto& line = page_.lines[rank_];
  line.length = static_cast<uint32_t>(own.size());
  std::memcpy(line.piece, own.data(), own.size());
  barrier();
  std::vector<std::string> all;
  for (int other = 0; other < size_; ++other)
    all.emplace_back(page_.lines[other].piece, page_.lines[other].length);
  barrier();  // no rank writes its next piece before all ranks have read this one
  return all;
}

double ForkTeam::max(double value) {
  std::string piece(sizeof value, '\0');
  std::memcpy(piece.data(), &value, sizeof value);
  for (const auto& other : exchange(piece)) {
    double theirs = 0;
    std::memcpy(&theirs, other.data(), sizeof theirs);
    value = std::max(value, theirs);
  }
  return value;
}

int64_t ForkTeam::sum(int64_t value) {
  int64_t total = 0;
  for (const auto& other : exchange(std::to_string(value))) total += std::stoll(other);
  return total;
}

int ForkTeam::run(int size, const std::vector<std::string>& namespaces, unsigned deadline_s,
                  bool bind, const std::function<void(ForkTeam&)>& body) {
  if (size < 1 || size > kMostRanks)
    throw std::invalid_argument("--ranks must be from 1 to " + std::to_string(kMostRanks));
  if (!namespaces.empty() && namespaces.size() != static_cast<size_t>(size))
    throw std::invalid_argument("--namespaces must name one for each rank");
  void* memory =
      ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("the ranks' common page");
  auto* page = new (memory) Page;

  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) fail("fork");
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    int code = 0;
    try {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(deadline_s);
      if (bind) bind_to_core(rank);
      if (!namespaces.empty()) enter_namespace(namespaces[static_cast<size_t>(rank)]);
      ForkTeam team(*page, rank, size);
      body(team);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      code = 1;
    }
    std::fflush(nullptr);
    ::_exit(code);
  }

  int result = 0;
  for (size_t left = children.size(); left > 0; --left) {
    int status = 0;
    pid_t ended = 0;
    do ended = ::wait(&status);
    while (ended < 0 && errno == EINTR);
    if (ended < 0) fail("waiting for the ranks");
    children.erase(std::find(children.begin(), children.end(), ended));
    if (status == 0 || result != 0) continue;
    result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (WIFSIGNALED(status))
      std::fprintf(stderr, "a rank was ended by signal %d%s\n", WTERMSIG(status),
                   WTERMSIG(status) == SIGALRM ? " (its deadline)" : "");
    for (const auto child : children) ::kill(child, SIGKILL);
  }
  ::munmap(memory, sizeof(Page));
  return result;
}

}  // namespace tutti::benchmarks
