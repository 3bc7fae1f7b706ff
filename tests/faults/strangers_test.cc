// Silent connections occupy every listening socket of a job, and are renewed when they are closed.
// The job must start all the same, and log who connected.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <new>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/faults/view.h"
#include "tests/support/network_namespaces.h"
#include "tests/support/scratch_folder.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using test::NetworkNamespaces;
using test::view;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kConnections = 500;  // to each listening socket
constexpr int kPort = 29519;
constexpr uid_t kOtherUser = 65534;
constexpr double kSiege = 1.5;  // seconds before the last rank comes

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// State that the processes of the test share.
struct Shared {
  std::atomic<double> last_rank_came{0};
  std::atomic<double> started{0};  // when the last rank's job had started
  std::atomic<int> doors{0};       // listening sockets under attack
  std::atomic<bool> over{false};
};

Shared& make_shared_memory() {
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
  return *new (memory) Shared;
}

// Lists the listening sockets of this network namespace, which every user can see.
std::vector<std::string> doors() {
  std::vector<std::string> found;
  std::string line;
  for (std::ifstream tcp("/proc/thread-self/net/tcp"); std::getline(tcp, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    words >> number >> local >> remote >> state;
    constexpr char kListens[] = "0A";
    if (state == kListens) found.push_back("tcp " + local.substr(local.find(':') + 1));
  }
  for (std::ifstream unix_sockets("/proc/thread-self/net/unix"); std::getline(unix_sockets, line);)
    if (const auto at = line.find("@tutti-");
        at != line.npos && line.find(" 00010000 ") != line.npos)
      found.push_back(line.substr(at));
  return found;
}

Descriptor knock(const std::string& door) {
  if (door.starts_with("tcp ")) {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(door.substr(4), nullptr, 16)));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    return socket;
  }
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(door.begin() + 1, door.end(), address.sun_path + 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + door.size());
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) socket.reset();
  return socket;
}

// Keeps kConnections open to every listening socket until the job has ended.
int besiege(Shared& shared, uid_t user) {
  if (user != ::geteuid() && ::setresuid(user, user, user) != 0) return 97;
  std::map<std::string, std::vector<Descriptor>> sieges;
  while (!shared.over) {
    for (const auto& door : doors()) sieges[door].resize(kConnections);
    shared.doors = static_cast<int>(sieges.size());
    for (auto& [door, sockets] : sieges) {
      std::vector<pollfd> watched;
      for (auto& socket : sockets) {
        if (!socket) socket = knock(door);
        watched.push_back({socket.get(), POLLIN | POLLHUP, 0});
      }
      ::poll(watched.data(), watched.size(), 0);
      char bytes[256];
      for (size_t i = 0; i < watched.size(); ++i)
        if (watched[i].revents != 0 &&
            ::recv(watched[i].fd, bytes, sizeof bytes, MSG_DONTWAIT) <= 0)
          sockets[i].reset();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return 0;
}

int rank_body(int rank, const std::string& backend, const std::string& log_file, Shared& shared) {
  std::ofstream log(log_file);
  Options options;
  options.rank = options.local_rank = rank;
  options.size = options.local_size = kRanks;
  options.launcher = "explicit";
  options.store = fmt::format("tcp://127.0.0.1:{}", kPort);
  options.serve_store = true;
  options.secret = "a secret of this test";
  options.backend = backend;
  options.connect_timeout = 40;
  options.log = [&](LogLevel, std::string_view line) { log << line << std::endl; };
  // All ranks have registered at the store. The others listen while the last rank is delayed.
  options.observer = [&](std::string_view point) {
    if (point != "rendezvous" || rank != kRanks - 1) return;
    std::this_thread::sleep_for(std::chrono::duration<double>(kSiege));
    shared.last_rank_came = now();
  };
  const auto comm = Communicator::create(options);
  std::vector<float> ones(1000, 1.0f);
  comm->allreduce("x", view(ones), ReduceOp::sum).wait();
  if (rank == kRanks - 1) shared.started = now();
  return ones[999] == kRanks ? 0 : 11;
}

std::string text_of(const std::string& file) {
  std::ifstream input(file);
  return {std::istreambuf_iterator<char>(input), {}};
}

struct Case {
  const char* name;
  const char* backend;
  bool as_other_user;
};

class Strangers : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Doors, Strangers,
                         testing::Values(Case{"tcp", "tcp", true}, Case{"unix", "shm", true},
                                         Case{"unix_own_user", "shm", false}),
                         [](const auto& info) { return info.param.name; });

TEST_P(Strangers, DoNotKeepAJobFromStarting) {
  const auto why = NetworkNamespaces::unavailable();
  if (!why.empty()) GTEST_SKIP() << why;
  const NetworkNamespaces hosts(1);
  const test::ScratchFolder folder;
  auto& shared = make_shared_memory();
  const auto log_of = [&](int rank) { return fmt::format("{}/{}", folder.path(), rank); };
  const pid_t attacker = hosts.start(
      0, [&] { return besiege(shared, GetParam().as_other_user ? kOtherUser : ::geteuid()); });
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.push_back(hosts.start(
        0, [&, rank] { return rank_body(rank, GetParam().backend, log_of(rank), shared); }));
  for (const pid_t rank : ranks) EXPECT_EQ(test::wait_for_child(rank, 50), 0);
  shared.over = true;
  EXPECT_EQ(test::wait_for_child(attacker, 10), 0);

  ASSERT_GT(shared.started, 0);
  EXPECT_LT(shared.started - shared.last_rank_came, 5);
  EXPECT_GE(shared.doors, 3);  // those of the store and of ranks 0 and 1
  RecordProperty("seconds", fmt::format("{:.2f}", shared.started - shared.last_rank_came));
  for (const int rank : {0, 1}) {
    const auto log = text_of(log_of(rank));
    SCOPED_TRACE(log);
    const std::string kind =
        std::string(GetParam().backend) == "shm" && GetParam().as_other_user
            ? "\\([0-9]+ said nothing, [0-9]+ did not prove themselves, [1-9][0-9]* of other users"
            : "\\([1-9][0-9]* said nothing";
    EXPECT_THAT(log, ContainsRegex(fmt::format(
                         "rank {} at .* turned [0-9]+ connections away in .* s {}", rank, kind)));
    EXPECT_LT(std::count(log.begin(), log.end(), '\n'), 8);
  }
  EXPECT_THAT(text_of(log_of(0)),
              ContainsRegex("the store at 127.0.0.1:29519 turned [0-9]+ connections away"));
}

}  // namespace
}  // namespace tutti
