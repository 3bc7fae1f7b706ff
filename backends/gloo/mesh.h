#pragma once

#include <gloo/context.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/gloo/watched_transport.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// Gloo's connections to all other ranks, which find each other through our Store. Gloo's own
/// timeout is very long, so close() wakes the operations that still wait.
class GlooMesh final : public gloo::Context {
 public:
  /// Throws Error(unavailable | timeout) if a rank cannot be reached before the deadline.
  static std::shared_ptr<GlooMesh> connect(const tutti::Context& context);
  /// Closes the connections in order, so that data already sent still arrives.
  ~GlooMesh() override;

  /// Fails every call that waits in the mesh, on this rank and, because the connections end, on the
  /// other ranks. Any thread may call it.
  void close() noexcept;
  /// Returns the address on which this rank listens.
  const std::string& address() const { return address_; }

 private:
  GlooMesh(int rank, int size);
  void listen(const tutti::Context& context);
  void connect_all(const tutti::Context& context);
  void find_sockets(const std::vector<std::vector<char>>& own,
                    const std::vector<std::vector<char>>& theirs);

  std::string address_;
  std::shared_ptr<WatchedTransport> watched_;
  // By rank: a duplicate of the socket of Gloo's connection; empty for this rank. Gloo's calls
  // cannot be cancelled, but they fail when the socket is shut down. Constant once connected.
  std::vector<Descriptor> sockets_;
};

}  // namespace tutti
