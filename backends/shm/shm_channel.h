#pragma once

#include <memory>
#include <string_view>

#include "tutti/backends/shm/shared_rings.h"
#include "tutti/backends/stream/ring_channel.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// Everything that one end of a connected pair holds.
struct ShmEnds {
  SharedRings rings;
  int side = 0;  // 0: the connector
  Bell own;
  Bell peer;
  Descriptor socket;  // it reaches end of file when the peer ends
  // a pidfd of the peer, if it is another process that we can see; needed because the socket
  // outlives a peer that forked
  Descriptor process;
  Descriptor memory;  // the memory that the peer shares with all ranks of its host, if it does
};

/// A Channel to a process of the same host.
class ShmChannel final : public RingChannel {
 public:
  explicit ShmChannel(std::unique_ptr<ShmEnds> ends);
  ~ShmChannel() override;
  void watch(Poller& poller) override;
  std::string_view route() const override { return "shm"; }

 private:
  std::string_view look_for_end(bool carefully) override;

  std::unique_ptr<ShmEnds> ends_;
  unsigned empty_reads_ = 0;
  std::string_view end_;  // how the peer ended, once seen
};

}  // namespace tutti
