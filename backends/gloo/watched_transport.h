#pragma once

#include <gloo/transport/context.h>

#include <memory>
#include <mutex>
#include <set>

namespace tutti {

class WatchedBuffer;

/// Gloo's transport, with a function that ends its waits. It is needed because Gloo does not always
/// wake a send whose connection has ended.
class WatchedTransport final : public gloo::transport::Context {
 public:
  explicit WatchedTransport(std::shared_ptr<gloo::transport::Context> inner);
  ~WatchedTransport() override;

  std::unique_ptr<gloo::transport::Pair>& getPair(int rank) override;
  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override;
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data,
                                                                      size_t bytes) override;

  /// Makes all present and future waits throw. Any thread may call it.
  void end_waits() noexcept;

 private:
  friend class WatchedBuffer;
  const std::shared_ptr<gloo::transport::Context> inner_;
  std::mutex buffers_mutex_;  // guards the members below
  std::set<WatchedBuffer*> buffers_;
  bool has_ended_ = false;
};

}  // namespace tutti
