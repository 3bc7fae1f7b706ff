#pragma once

#include <sys/types.h>

#include <string>

#include "tests/support/network_namespaces.h"

namespace tutti::test {

/// A slow link between hosts 0 and 1 that loses packets, like netem and tbf in kernels that have
/// them. Packets of a TUN device in each host pass through a process of the test. It drops some at
/// random, delays the others, and drops what does not fit its queue.
class LossyLink {
 public:
  struct Quality {
    double bits_per_second = 200e6;
    double loss = 0;  // probability for each packet, in each direction
    size_t queue_bytes = 1 << 20;
    unsigned seed = 1;
  };
  static constexpr const char* kInterface = "lossy0";
  /// Returns why this machine cannot have one, or "".
  static std::string unavailable();

  /// Must be called before this process has started a thread.
  LossyLink(const NetworkNamespaces& hosts, const Quality& quality);
  ~LossyLink();
  LossyLink(const LossyLink&) = delete;
  static std::string address(int host);  // returns 10.84.0.1 and so on

 private:
  pid_t carrier_ = -1;
};

}  // namespace tutti::test
