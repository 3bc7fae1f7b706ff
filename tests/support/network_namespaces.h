#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tutti/base/descriptor.h"

namespace tutti::test {

/// Several "hosts" on this machine: network namespaces joined by a bridge in one more namespace.
/// They have no names and exist only through descriptors of this process, so nothing is left behind
/// however the process ends.
class NetworkNamespaces {
 public:
  /// Returns why this machine cannot have them ("not root"), or "". Tests skip with this reason.
  static std::string unavailable();

  /// Throws std::runtime_error with the command that failed.
  explicit NetworkNamespaces(int count);

  int count() const { return static_cast<int>(hosts_.size()); }
  /// The interface that joins each host to the others.
  static constexpr const char* kInterface = "eth0";
  std::string address(int host) const;       // returns 10.83.0.1 and so on
  std::string address_ipv6(int host) const;  // returns fd83::1 and so on
  /// Returns a path for `nsenter --net=PATH`, valid while this object exists.
  std::string path(int host) const;

  /// Calls `body` on a thread inside the host. Sockets that it makes stay in the host.
  void within(int host, const std::function<void()>& body) const;
  /// Forks a child that runs `body` inside the host and exits with its result. After an exception
  /// it writes the text to standard error and exits with 99. Fork before threads are started.
  pid_t start(int host, const std::function<int()>& body) const;

  /// Takes the host off the bridge. Its packets vanish silently, as behind a broken switch.
  void cut(int host);
  void restore(int host);

 private:
  void run(int ns, const std::string& command) const;

  Descriptor bridge_;
  std::vector<Descriptor> hosts_;
};

/// Returns the child's exit code, or 128 + the signal that ended it. Kills the child after
/// `seconds`.
int wait_for_child(pid_t child, double seconds);

}  // namespace tutti::test
