#pragma once

#include <sys/types.h>

#include <string>

#include "tests/support/network_namespaces.h"

namespace tutti::test {

/// A link of its own between hosts 0 and 1 that is slow and loses packets, as netem and tbf make it
/// where the kernel has them: packets of a TUN device in each host pass through a process of ours,
/// which drops some at random, lets the rest wait for their turn and drops what finds no room.
class LossyLink {
 public:
  struct Quality {
    double bits_per_second = 200e6;
    double loss = 0;  // of each packet, each way
    size_t queue_bytes = 1 << 20;
    unsigned seed = 1;
  };
  static constexpr const char* kInterface = "lossy0";
  /// Why this machine cannot have one, or empty.
  static std::string unavailable();

  /// To be made before this process has started a thread.
  LossyLink(const NetworkNamespaces& hosts, const Quality& quality);
  ~LossyLink();
  LossyLink(const LossyLink&) = delete;
  static std::string address(int host);  // 10.84.0.1 and so on

 private:
  pid_t carrier_ = -1;
};

}  // namespace tutti::test
