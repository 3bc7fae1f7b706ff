#include "benchmarks/limits/sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "benchmarks/common/measure.h"
#include "benchmarks/common/row.h"
#include "benchmarks/common/sizes.h"
#include "benchmarks/common/words.h"

namespace tutti::benchmarks {

namespace {

constexpr int kConnect_ms = 10'000;
constexpr int kStall_ms = 20'000;
constexpr int64_t kPiece = 256 << 10;  // of a system call

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {
    if (descriptor < 0) fail("socket");
  }
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

void set_congestion(const Socket& socket, const std::string& name) {
  if (!name.empty() && ::setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(),
                                    static_cast<socklen_t>(name.size())) != 0)
    fail("congestion control " + name);
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

sockaddr_in address_of(const std::string& host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1)
    throw std::invalid_argument("not an IPv4 address: " + host);
  return address;
}

// This rank's connections: to the right to send on, from the left to receive on; the same ones when
// there are two ranks.
class Ring {
 public:
  Ring(ForkTeam& team, const std::vector<std::string>& hosts, int sockets,
       const std::string& congestion) {
    const int me = team.rank(), size = team.size(), right = (me + 1) % size;
    Socket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    set_congestion(listener, congestion);  // what it accepts inherits it
    auto address = address_of(hosts[static_cast<size_t>(me)], 0);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener.get(), generic, length) != 0 || ::listen(listener.get(), sockets) != 0 ||
        ::getsockname(listener.get(), generic, &length) != 0)
      fail("listening on " + hosts[static_cast<size_t>(me)]);
    const auto ports = team.exchange(std::to_string(ntohs(address.sin_port)));

    const bool connects = size > 2 || me == 0, accepts = size > 2 || me == 1;
    for (int i = 0; connects && i < sockets; ++i) {
      Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      set_congestion(socket, congestion);
      const auto& host = hosts[static_cast<size_t>(right)];
      const auto port = std::stoi(ports[static_cast<size_t>(right)]);
      auto to = address_of(host, static_cast<uint16_t>(port));
      if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0)
        fail("connecting to " + host);
      to_right_.push_back(std::move(socket));
    }
    for (int i = 0; accepts && i < sockets; ++i) {
      pollfd waiting{listener.get(), POLLIN, 0};
      if (::poll(&waiting, 1, kConnect_ms) != 1) fail("no connection from the left within 10 s");
      from_left_.emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    }
    for (const auto& socket : connects ? to_right_ : from_left_) send_on_.push_back(socket.get());
    for (const auto& socket : accepts ? from_left_ : to_right_) recv_on_.push_back(socket.get());
  }

  /// Sends and receives `bytes` each, evenly over the sockets.
  void exchange(int64_t bytes) {
    const size_t sockets = send_on_.size();
    std::vector<int64_t> to_send(sockets), to_recv(sockets);
    for (size_t i = 0; i < sockets; ++i) to_send[i] = to_recv[i] = share(bytes, i, sockets);
    std::vector<pollfd> waiting(2 * sockets);
    for (;;) {
      bool moved = false, pending = false;
      for (size_t i = 0; i < sockets; ++i) {
        moved |= advance(send_on_[i], to_send[i], true) | advance(recv_on_[i], to_recv[i], false);
        pending |= to_send[i] > 0 || to_recv[i] > 0;
        waiting[2 * i] = {to_send[i] > 0 ? send_on_[i] : -1, POLLOUT, 0};
        waiting[2 * i + 1] = {to_recv[i] > 0 ? recv_on_[i] : -1, POLLIN, 0};
      }
      if (!pending) return;
      if (!moved && ::poll(waiting.data(), waiting.size(), kStall_ms) == 0)
        throw std::runtime_error("no byte moved for 20 s");
    }
  }

  /// What the sockets really have.
  std::string congestion() const {
    char name[32] = {};
    socklen_t length = sizeof name - 1;
    if (::getsockopt(send_on_.front(), IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0)
      fail("asking for the congestion control");
    return name;
  }

 private:
  static int64_t share(int64_t bytes, size_t i, size_t sockets) {
    const auto each = bytes / static_cast<int64_t>(sockets);
    return i + 1 < sockets ? each : bytes - each * static_cast<int64_t>(sockets - 1);
  }

  // One system call, if there is something to do.
  bool advance(int descriptor, int64_t& left, bool sends) {
    if (left == 0) return false;
    const auto length = static_cast<size_t>(std::min(left, kPiece));
    const auto moved = sends ? ::send(descriptor, out_.data(), length, MSG_DONTWAIT | MSG_NOSIGNAL)
                             : ::recv(descriptor, in_.data(), length, MSG_DONTWAIT);
    if (moved > 0) {
      left -= moved;
      return true;
    }
    if (moved == 0) throw std::runtime_error("the neighbour closed its connection");
    if (errno != EAGAIN && errno != EINTR) fail(sends ? "send" : "recv");
    return false;
  }

  std::vector<Socket> to_right_, from_left_;
  std::vector<int> send_on_, recv_on_;
  // In cache: the limit must not pay for memory that an allreduce has to read anyway.
  std::vector<char> out_ = std::vector<char>(kPiece, 'x'), in_ = std::vector<char>(kPiece);
};

}  // namespace

void run_sockets(const Flags& flags, ForkTeam& team) {
  if (team.size() < 2) throw std::invalid_argument("sockets needs at least 2 ranks");
  auto hosts = split_words(flags.text("hosts"));
  if (hosts.empty()) hosts.assign(static_cast<size_t>(team.size()), "127.0.0.1");
  if (hosts.size() != static_cast<size_t>(team.size()))
    throw std::invalid_argument("--hosts must name one address for each rank");
  const int sockets = flags.whole("sockets");
  if (sockets < 1 || sockets > 64) throw std::invalid_argument("--sockets must be from 1 to 64");
  Ring ring(team, hosts, sockets, flags.text("congestion"));
  const Method method{flags.whole("repetitions"), flags.number("repetition-ms"),
                      flags.whole("warmup"), flags.number("cell-ms")};
  for (const auto bytes : parse_sizes(flags.text("bytes"), flags.whole("factor"))) {
    const int64_t moved = 2 * bytes * (team.size() - 1) / team.size();
    Row row{.program = "limit", .case_name = flags.case_name(), .way = "sockets"};
    row.bytes = bytes;
    row.ranks = team.size();
    row.transport = "tcp";
    row.timing = measure(
        team, method, kNeverOverflows, [] {}, [&] { ring.exchange(moved); });
    row.numbers["sockets"] = sockets;
    row.numbers["gb_per_s_each_way"] = static_cast<double>(moved) / row.timing.median_us / 1000;
    row.words["congestion"] = ring.congestion();
    if (team.rank() == 0) print(row);
  }
}

}  // namespace tutti::benchmarks
