#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/common/fork_team.h"

namespace tutti::benchmarks {

/// Plain TCP sockets with the traffic of a ring allreduce: every rank sends to the right and
/// receives the same number of bytes from the left, at the same time. There is no arithmetic and no
/// protocol, so this measures the network alone.
class Ring {
 public:
  /// `hosts` has the address of each rank.
  Ring(ForkTeam& team, const std::vector<std::string>& hosts, int sockets,
       const std::string& congestion);

  /// Sends and receives `bytes` bytes each, evenly over the sockets.
  void exchange(int64_t bytes);

  /// Returns the congestion control that the sockets really use.
  std::string congestion() const;

 private:
  class Socket {
   public:
    explicit Socket(int descriptor);
    ~Socket();
    Socket(Socket&& other) noexcept;
    Socket& operator=(Socket&&) = delete;
    int get() const { return descriptor_; }

   private:
    int descriptor_;
  };
  static constexpr size_t kPiece = 256 << 10;  // bytes per system call

  bool advance(int descriptor, int64_t& left, bool sends);

  // Sockets to send to the right and to receive from the left. With two ranks both use the same
  // sockets.
  std::vector<Socket> to_right_, from_left_;
  std::vector<int> send_on_, recv_on_;
  // These buffers stay in the cache. The limit must not include the memory accesses that an
  // allreduce needs anyway.
  std::vector<char> out_ = std::vector<char>(kPiece, 'x'), in_ = std::vector<char>(kPiece);
};

}  // namespace tutti::benchmarks
