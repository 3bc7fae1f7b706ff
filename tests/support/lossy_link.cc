#include "tests/support/lossy_link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <stdexcept>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/descriptor.h"

namespace tutti::test {

namespace {

constexpr size_t kPacketBytes = 1500;
// The time that a late carrier may catch up.
constexpr std::chrono::microseconds kBurst{500};

// Creates a TUN device in the network namespace of the calling thread. Without packet information,
// reads and writes are plain IP packets.
Descriptor make_tun(const std::string& address) {
  Descriptor tun(::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!tun) throw std::runtime_error(fmt::format("no /dev/net/tun: {}", std::strerror(errno)));
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, LossyLink::kInterface, IFNAMSIZ - 1);
  if (::ioctl(tun.get(), TUNSETIFF, &request) != 0)
    throw std::runtime_error(fmt::format("no TUN device: {}", std::strerror(errno)));
  const auto command =
      fmt::format("ip addr add {}/24 dev {} && ip link set {} mtu {} txqueuelen 2000 up", address,
                  LossyLink::kInterface, LossyLink::kInterface, kPacketBytes);
  if (std::system(command.c_str()) != 0) throw std::runtime_error("`" + command + "` failed");
  return tun;
}

// One direction of the link.
class Lane {
 public:
  Lane(int from, int to, const LossyLink::Quality& quality, unsigned seed)
      : from_(from), to_(to), quality_(quality), random_(seed) {}

  int from() const { return from_; }
  /// Returns when the next packet has been sent, or Clock::time_point::max().
  Clock::time_point next() const { return queue_.empty() ? Clock::time_point::max() : next_; }

  void take() {
    std::array<char, 2 * kPacketBytes> bytes;
    for (int i = 0; i < 256; ++i) {
      const auto count = ::read(from_, bytes.data(), bytes.size());
      if (count <= 0) return;
      const auto size = static_cast<size_t>(count);
      if (std::uniform_real_distribution<>(0, 1)(random_) < quality_.loss) continue;
      if (waiting_ + size > quality_.queue_bytes) continue;
      if (queue_.empty()) next_ = std::max(next_, Clock::now() - kBurst) + time_of(size);
      waiting_ += size;
      queue_.emplace_back(bytes.begin(), bytes.begin() + count);
    }
  }

  void deliver() {
    const auto now = Clock::now();
    while (!queue_.empty() && next_ <= now) {
      const auto packet = std::move(queue_.front());
      queue_.pop_front();
      waiting_ -= packet.size();
      [[maybe_unused]] const auto sent = ::write(to_, packet.data(), packet.size());
      if (!queue_.empty()) next_ += time_of(queue_.front().size());
    }
  }

 private:
  Clock::duration time_of(size_t bytes) const {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(8 * static_cast<double>(bytes) / quality_.bits_per_second));
  }

  const int from_, to_;
  const LossyLink::Quality quality_;
  std::mt19937 random_;
  std::deque<std::vector<char>> queue_;
  size_t waiting_ = 0;
  Clock::time_point next_ = Clock::time_point::min() + std::chrono::hours(1);
};

[[noreturn]] void carry(const Descriptor& one, const Descriptor& other,
                        const LossyLink::Quality& quality) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Lane lanes[] = {{one.get(), other.get(), quality, quality.seed},
                  {other.get(), one.get(), quality, quality.seed + 1}};
  while (true) {
    const auto next = std::min(lanes[0].next(), lanes[1].next());
    const auto left = std::clamp(next - Clock::now(), Clock::duration::zero(),
                                 Clock::duration(std::chrono::milliseconds(100)));
    const timespec wait{0, std::chrono::nanoseconds(left).count()};
    pollfd ready[] = {{lanes[0].from(), POLLIN, 0}, {lanes[1].from(), POLLIN, 0}};
    ::ppoll(ready, 2, &wait, nullptr);
    for (auto& lane : lanes) {
      lane.take();
      lane.deliver();
    }
  }
}

}  // namespace

std::string LossyLink::unavailable() {
  if (auto why = NetworkNamespaces::unavailable(); !why.empty()) return why;
  try {
    NetworkNamespaces two(2);
    two.within(0, [] { make_tun(address(0)); });
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

LossyLink::LossyLink(const NetworkNamespaces& hosts, const Quality& quality) {
  std::array<Descriptor, 2> ends;
  for (const int host : {0, 1})
    hosts.within(host, [&] { ends[static_cast<size_t>(host)] = make_tun(address(host)); });
  carrier_ = ::fork();
  if (carrier_ < 0) throw std::runtime_error("cannot fork a carrier");
  if (carrier_ == 0) carry(ends[0], ends[1], quality);
}

LossyLink::~LossyLink() {
  ::kill(carrier_, SIGKILL);
  wait_for_child(carrier_, 5);
}

std::string LossyLink::address(int host) { return fmt::format("10.84.0.{}", host + 1); }

}  // namespace tutti::test
