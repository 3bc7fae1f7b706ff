#pragma once

#include <gloo/context.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/gloo/watched_transport.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// Gloo's connections to all other ranks, made through our Store. Gloo's own timeouts are only a
/// backstop: close() wakes an operation that would wait forever.
class GlooMesh final : public gloo::Context {
 public:
  /// Throws Error(unavailable | timeout) if a rank cannot be reached within the deadline.
  static std::shared_ptr<GlooMesh> connect(const tutti::Context& context);
  /// Data that was sent still arrives.
  ~GlooMesh() override;

  /// Fails every call that waits in the mesh: here, and on the other ranks as the connections end.
  /// Any thread may call it.
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
  // Duplicates of the sockets of Gloo's connections. Gloo cannot be cancelled, but it notices when
  // they are shut down. Constant once connected; empty for this rank.
  std::vector<Descriptor> sockets_;
};

}  // namespace tutti
