#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/common/fork_team.h"

namespace tutti::benchmarks {

/// Plain TCP sockets with the pattern of a ring allreduce: every rank sends to its right and
/// receives as much from its left, both at once, by a given congestion control and number of
/// sockets. No arithmetic, no protocol: what is left is the network.
class Ring {
 public:
  /// `hosts`: of each rank its address.
  Ring(ForkTeam& team, const std::vector<std::string>& hosts, int sockets,
       const std::string& congestion);

  /// Sends and receives `bytes` each, evenly over the sockets.
  void exchange(int64_t bytes);

  /// What the sockets really have.
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
  static constexpr size_t kPiece = 256 << 10;  // of a system call

  bool advance(int descriptor, int64_t& left, bool sends);

  // To the right to send on, from the left to receive on; the same ones when there are two ranks.
  std::vector<Socket> to_right_, from_left_;
  std::vector<int> send_on_, recv_on_;
  // In cache: the limit must not pay for memory that an allreduce has to read anyway.
  std::vector<char> out_ = std::vector<char>(kPiece, 'x'), in_ = std::vector<char>(kPiece);
};

}  // namespace tutti::benchmarks
