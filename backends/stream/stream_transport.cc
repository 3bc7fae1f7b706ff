#include "tutti/backends/stream/stream_transport.h"

#include <sys/epoll.h>

#include <exception>
#include <utility>

#include "tutti/backends/backend.h"
#include "tutti/base/deadline.h"

namespace tutti {

namespace {

// The time between two checks whether the last bytes have arrived. Nothing wakes a sleeping thread
// when they have.
constexpr double kDeliveryLook = 0.002;  // seconds

}  // namespace

StreamTransport::StreamTransport(int rank, std::vector<std::unique_ptr<Channel>> channels)
    : StreamCore(rank, std::move(channels)) {
  poller_.watch(abort_bell_.descriptor(), EPOLLIN);
  watch_channels(poller_);
}

bool StreamTransport::progress() {
  if (abort_rung_.load(std::memory_order_relaxed) &&
      abort_rung_.exchange(false, std::memory_order_acquire)) {
    abort_bell_.silence();
    fail_everything();
    return true;
  }
  return StreamCore::progress();
}

bool StreamTransport::arm() {
  return !abort_rung_.load(std::memory_order_acquire) && StreamCore::arm();
}

void StreamTransport::abort(const Error&) noexcept {
  // The bell rings before the flag is set. A thread that sees the flag silences the bell. A bell
  // that rang only after that would stay readable.
  abort_bell_.ring();
  abort_rung_.store(true, std::memory_order_release);
}

void StreamTransport::goodbye(double seconds) noexcept {
  try {
    const auto deadline = Deadline::after(seconds);
    begin_goodbye();
    while (true) {
      const bool moved = progress();
      if (is_flushed() || deadline.passed()) return;
      const auto next_look = is_written() ? Deadline::after(kDeliveryLook) : deadline;
      if (!moved && arm()) poller_.wait(next_look.poll_milliseconds());
    }
  } catch (const std::exception&) {
    // If the goodbye cannot be sent, the peer sees the end of the connection instead.
  }
}

std::unique_ptr<Transport> make_stream_transport(int rank,
                                                 std::vector<std::unique_ptr<Channel>> channels) {
  return std::make_unique<StreamTransport>(rank, std::move(channels));
}

}  // namespace tutti
