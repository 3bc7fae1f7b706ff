// A link that is slow or loses packets. Results must be exact, no rank may be called silent, and
// the rate must be about that of plain sockets with the host's congestion control.

#include "tests/support/lossy_link.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "tests/faults/view.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using test::LossyLink;
using test::NetworkNamespaces;
using test::view;

using RankBody = std::function<int(Communicator&)>;

// Runs two ranks, one at each end of the link. The store's messages cross the link too.
void run_over(const LossyLink::Quality& quality, const RankBody& body,
              const std::function<void(Options&)>& tune, double seconds) {
  const NetworkNamespaces hosts(2);
  const LossyLink link(hosts, quality);
  std::vector<pid_t> ranks;
  for (const int rank : {0, 1})
    ranks.push_back(hosts.start(rank, [&, rank] {
      Options options;
      options.rank = rank;
      options.size = 2;
      options.launcher = "explicit";
      options.store = fmt::format("tcp://{}:29521", LossyLink::address(0));
      options.serve_store = true;
      options.secret = "a secret of this test";
      options.network_interface = LossyLink::kInterface;
      options.backend = "tcp";
      tune(options);
      const auto comm = Communicator::create(options);
      return body(*comm);
    }));
  for (const pid_t rank : ranks) EXPECT_EQ(test::wait_for_child(rank, seconds), 0);
}

// A connection beside the communicator's, with the host's default settings.
class PlainSockets {
 public:
  explicit PlainSockets(int rank) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(29522);
    address.sin_addr.s_addr = htonl(0x0a540001);  // LossyLink::address(0)
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    socket_.reset(::socket(AF_INET, SOCK_STREAM, 0));
    const auto deadline = Deadline::after(20);
    if (rank == 0) {
      const Descriptor listener = std::move(socket_);
      pollfd entry{listener.get(), POLLIN, 0};
      if (::bind(listener.get(), generic, sizeof address) != 0 ||
          ::listen(listener.get(), 1) != 0 || ::poll(&entry, 1, 20'000) != 1)
        throw std::runtime_error("nobody calls the plain socket");
      socket_.reset(::accept(listener.get(), nullptr, nullptr));
    } else {
      while (::connect(socket_.get(), generic, sizeof address) != 0) {
        if (deadline.passed()) throw std::runtime_error("no plain socket answers");
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        socket_.reset(::socket(AF_INET, SOCK_STREAM, 0));
      }
    }
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  /// Sends and receives the same number of bytes at the same time.
  void exchange(std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    std::vector<char> taken(64 << 10);
    size_t sent = 0, received = 0;
    const auto* data = reinterpret_cast<const char*>(values.data());
    while (sent < bytes || received < bytes) {
      const auto events = static_cast<short>((sent < bytes ? POLLOUT : 0) | POLLIN);
      pollfd entry{socket_.get(), events, 0};
      if (::poll(&entry, 1, 30'000) != 1) throw std::runtime_error("the plain sockets stand still");
      const auto out =
          ::send(socket_.get(), data + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (out > 0) sent += static_cast<size_t>(out);
      const auto in = ::recv(socket_.get(), taken.data(), std::min(taken.size(), bytes - received),
                             MSG_DONTWAIT);
      if (in > 0) received += static_cast<size_t>(in);
    }
  }
  std::string congestion() const {
    char name[32] = "";
    socklen_t length = sizeof name - 1;
    ::getsockopt(socket_.get(), IPPROTO_TCP, TCP_CONGESTION, name, &length);
    return name;
  }

 private:
  Descriptor socket_;
};

template <typename Call>
double seconds_of(Call call) {
  const auto begin = Clock::now();
  call();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Reduces sums that a float holds exactly, and measures the rate.
int exact_and_measured(Communicator& comm, double loss) {
  PlainSockets plain(comm.rank());
  constexpr size_t kCount = 1 << 20;
  constexpr int kPairs = 3;
  std::vector<float> values(kCount);
  double ours = 0, theirs = 0;
  for (int pair = 0; pair <= kPairs; ++pair) {
    for (size_t i = 0; i < kCount; ++i)
      values[i] = static_cast<float>(i % 1000 + static_cast<size_t>(comm.rank() + pair));
    const auto reduce = [&] { comm.allreduce("x", view(values), ReduceOp::sum).wait(); };
    const double reduced = seconds_of(reduce);
    for (size_t i = 0; i < kCount; ++i)
      if (values[i] != static_cast<float>(2 * (i % 1000) + 2 * static_cast<size_t>(pair) + 1))
        return 11;
    const double exchanged = seconds_of([&] { plain.exchange(values); });
    if (pair == 0) continue;  // warm-up of both
    ours += reduced;
    theirs += exchanged;
  }
  // Many small allreduces at the same time.
  for (int step = 0; step < 5; ++step) {
    std::vector<std::vector<float>> small(20, std::vector<float>(100, 1.0f));
    std::vector<Work> works;
    for (size_t i = 0; i < small.size(); ++i)
      works.push_back(comm.allreduce(fmt::format("s{}", i), view(small[i]), ReduceOp::sum));
    for (auto& work : works) work.wait();
    for (const auto& one : small)
      if (one[99] != 2.0f) return 12;
  }
  if (comm.rank() == 0) {
    const double megabits = kPairs * kCount * sizeof(float) * 8 / 1e6;
    std::printf("%g %% loss, %s: %.1f Mb/s each way, plain sockets %.1f, share %.2f\n", 100 * loss,
                plain.congestion().c_str(), megabits / ours, megabits / theirs, theirs / ours);
    // With the congestion control cubic, the rate was a thirtieth of bbr's.
    if (loss >= 0.1 && plain.congestion() == "bbr" && theirs / ours < 0.1) return 13;
  }
  return 0;
}

class LossyLinkTest : public testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Losses, LossyLinkTest, testing::Values(0, 0.02, 0.1),
                         [](const auto& info) {
                           return fmt::format("percent_{}", std::lround(100 * info.param));
                         });

// Runs FAULT_RUNS times, by default once.
TEST_P(LossyLinkTest, ResultsAreExactAndNobodyIsSilent) {
  if (const auto why = LossyLink::unavailable(); !why.empty()) GTEST_SKIP() << why;
  const char* text = std::getenv("FAULT_RUNS");
  const int runs = text != nullptr ? std::atoi(text) : 1;
  for (int run = 0; run < runs && !HasFailure(); ++run) {
    SCOPED_TRACE(fmt::format("run {} of {}", run + 1, runs));
    const double loss = GetParam();
    run_over(
        {.bits_per_second = 200e6, .loss = loss, .seed = static_cast<unsigned>(run)},
        [&](Communicator& comm) { return exact_and_measured(comm, loss); },
        [](Options& options) { options.peer_timeout = 3; }, 100);
  }
}

// Pings and answers wait in the queue behind seconds of data. Data that arrives, and data that the
// peer reads, must count as signs of life too.
TEST(SlowLinkTest, AnswersBehindDataAreNoSilence) {
  if (const auto why = LossyLink::unavailable(); !why.empty()) GTEST_SKIP() << why;
  run_over(
      {.bits_per_second = 6e6, .queue_bytes = 8 << 20},
      [](Communicator& comm) {
        std::vector<float> values(1 << 19, static_cast<float>(1 - comm.rank()));
        comm.broadcast("model", view(values), 0).wait();
        comm.barrier_blocking();  // rank 0 is done when the network has all data
        // Waits until the queue is empty: leaving earlier is another case.
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        return values.front() == 1 && values.back() == 1 ? 0 : 11;
      },
      [](Options& options) {
        options.peer_timeout = 1;
        options.tcp_congestion = "reno";  // fills the queue, unlike bbr
      },
      60);
}

}  // namespace
}  // namespace tutti
