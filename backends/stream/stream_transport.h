#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "tutti/backends/stream/stream_core.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// A StreamCore for threads. A thread can sleep on its descriptor, any thread can abort it, and
/// goodbye() waits for the delivery of all bytes.
class StreamTransport final : public StreamCore {
 public:
  StreamTransport(int rank, std::vector<std::unique_ptr<Channel>> channels);

  bool progress() override;
  bool arm() override;
  int descriptor() const override { return poller_.descriptor(); }
  void abort(const Error& error) noexcept override;
  void goodbye(double seconds) noexcept override;

 private:
  // Channels remove themselves from the poller. So this member closes the channels before the
  // poller and the core are destroyed.
  struct ChannelsGoFirst {
    StreamTransport& transport;
    ~ChannelsGoFirst() { transport.end_channels(); }
  };

  Poller poller_;
  const ChannelsGoFirst channels_go_first_{*this};
  Bell abort_bell_;
  std::atomic<bool> abort_rung_{false};
};

}  // namespace tutti
