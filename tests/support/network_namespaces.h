#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tutti/base/descriptor.h"

namespace tutti::test {

/// Several "hosts" on this machine: network namespaces joined by a bridge in one more namespace.
/// They have no names and live only by descriptors of this process, so nothing is left behind
/// however the process ends.
class NetworkNamespaces {
 public:
  /// Why this machine cannot have them ("not root"), or empty. Tests skip with this reason.
  static std::string unavailable();

  /// Throws std::runtime_error with the command that failed.
  explicit NetworkNamespaces(int count);

  int count() const { return static_cast<int>(hosts_.size()); }
  /// The interface that joins each host to the others.
  static constexpr const char* kInterface = "eth0";
  std::string address(int host) const;       // 10.83.0.1 and so on
  std::string address_ipv6(int host) const;  // fd83::1 and so on
  /// For `nsenter --net=PATH`; valid while this object lives.
  std::string path(int host) const;

  /// Calls `body` on a thread that is inside the host; sockets made there stay there.
  void within(int host, const std::function<void()>& body) const;
  /// Forks a child that runs `body` inside the host and exits with its result (99 after an
  /// exception, whose text goes to standard error). Fork before threads are started.
  pid_t start(int host, const std::function<int()>& body) const;

  /// Takes the host off the bridge: packets vanish in silence, as behind a broken switch.
  void cut(int host);
  void restore(int host);

 private:
  void run(int ns, const std::string& command) const;

  Descriptor bridge_;
  std::vector<Descriptor> hosts_;
};

/// The child's exit code, or 128 + the signal that ended it; kills it after `seconds`.
int wait_for_child(pid_t child, double seconds);

}  // namespace tutti::test
