#pragma once

#include <gloo/context.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/gloo/watched_transport.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// Gloo's connections to all other ranks, made through our Store. Its own timeouts are a backstop
/// only: an operation that waits in vain is woken by close().
class GlooMesh final : public gloo::Context {
 public:
  /// Throws Error(unavailable | timeout) if a rank cannot be reached within the deadline.
  static std::shared_ptr<GlooMesh> connect(const tutti::Context& context);
  /// What was sent still arrives.
  ~GlooMesh() override;

  /// Fails every call that waits in the mesh, here and, as the connections end, on the other ranks.
  /// Any thread.
  void close() noexcept;
  /// Where this rank listens.
  const std::string& address() const { return address_; }

 private:
  GlooMesh(int rank, int size);
  void listen(const tutti::Context& context);
  void connect_all(const tutti::Context& context);
  void find_sockets(const std::vector<std::vector<char>>& own,
                    const std::vector<std::vector<char>>& theirs);

  std::string address_;
  std::shared_ptr<WatchedTransport> watched_;
  // The sockets of Gloo's connections, held beside Gloo: it cannot be told to give up, but it sees
  // when they end. Constant once connected; none for this rank.
  std::vector<Descriptor> sockets_;
};

}  // namespace tutti
