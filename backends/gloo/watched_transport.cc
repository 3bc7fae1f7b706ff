#include "tutti/backends/gloo/watched_transport.h"

#include <gloo/common/error.h>

#include <utility>
#include <vector>

namespace tutti {

/// Forwards all calls to Gloo's buffer. end_waits() ends the waits of this buffer.
class WatchedBuffer final : public gloo::transport::UnboundBuffer {
 public:
  using Milliseconds = std::chrono::milliseconds;
  WatchedBuffer(WatchedTransport& owner, std::unique_ptr<UnboundBuffer> inner)
      : UnboundBuffer(inner->ptr, inner->size), owner_(owner), inner_(std::move(inner)) {
    const std::lock_guard lock(owner_.buffers_mutex_);
    owner_.buffers_.insert(this);
    if (owner_.has_ended_) wake();
  }
  ~WatchedBuffer() override {
    const std::lock_guard lock(owner_.buffers_mutex_);
    owner_.buffers_.erase(this);
  }
  void wake() {
    inner_->abortWaitRecv();
    inner_->abortWaitSend();
  }

  bool waitRecv(int* rank, Milliseconds timeout) override {
    return check(inner_->waitRecv(rank, timeout));
  }
  bool waitSend(int* rank, Milliseconds timeout) override {
    return check(inner_->waitSend(rank, timeout));
  }
  void abortWaitRecv() override { inner_->abortWaitRecv(); }
  void abortWaitSend() override { inner_->abortWaitSend(); }
  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    inner_->send(to, slot, offset, bytes);
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    inner_->recv(from, slot, offset, bytes);
  }
  void recv(std::vector<int> from, uint64_t slot, size_t offset, size_t bytes) override {
    inner_->recv(std::move(from), slot, offset, bytes);
  }

 private:
  // A wait ends early only because of end_waits().
  static bool check(bool completed) {
    if (!completed) throw gloo::IoException("Gloo's connections are closed");
    return true;
  }
  WatchedTransport& owner_;
  const std::unique_ptr<UnboundBuffer> inner_;
};

WatchedTransport::WatchedTransport(std::shared_ptr<gloo::transport::Context> inner)
    : Context(inner->rank, inner->size), inner_(std::move(inner)) {
  setTimeout(inner_->getTimeout());
}

WatchedTransport::~WatchedTransport() = default;

std::unique_ptr<gloo::transport::Pair>& WatchedTransport::getPair(int rank) {
  return inner_->getPair(rank);
}

std::unique_ptr<gloo::transport::Pair>& WatchedTransport::createPair(int rank) {
  return inner_->createPair(rank);
}

std::unique_ptr<gloo::transport::UnboundBuffer> WatchedTransport::createUnboundBuffer(
    void* data, size_t bytes) {
  return std::make_unique<WatchedBuffer>(*this, inner_->createUnboundBuffer(data, bytes));
}

void WatchedTransport::end_waits() noexcept {
  const std::lock_guard lock(buffers_mutex_);
  has_ended_ = true;
  for (auto* buffer : buffers_) buffer->wake();
}

}  // namespace tutti
