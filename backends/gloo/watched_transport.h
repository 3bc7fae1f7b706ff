#pragma once

#include <gloo/transport/context.h>

#include <memory>
#include <mutex>
#include <set>

namespace tutti {

class WatchedBuffer;

/// Gloo's transport, with a way to end the waits in it: a send that waits for a connection that has
/// ended is not always told.
class WatchedTransport final : public gloo::transport::Context {
 public:
  explicit WatchedTransport(std::shared_ptr<gloo::transport::Context> inner);
  ~WatchedTransport() override;

  std::unique_ptr<gloo::transport::Pair>& getPair(int rank) override;
  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override;
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data,
                                                                      size_t bytes) override;

  /// Every wait from now on, and those under way, throw. Any thread.
  void end_waits() noexcept;

 private:
  friend class WatchedBuffer;
  const std::shared_ptr<gloo::transport::Context> inner_;
  std::mutex buffers_mutex_;  // guards the following
  std::set<WatchedBuffer*> buffers_;
  bool has_ended_ = false;
};

}  // namespace tutti
