#pragma once

#include <memory>
#include <string_view>

#include "tutti/backends/shm/shared_rings.h"
#include "tutti/backends/stream/ring_channel.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// Everything that one rank holds of its connection with one peer.
struct ShmEnds {
  SharedRings rings;
  int side = 0;  // 0: the rank that called, 1: the rank that was called
  Bell own;
  Bell peer;
  Descriptor socket;  // reaches end of file when the peer ends
  // a pidfd of the peer, if the peer is another process that this rank can see. The socket alone is
  // not enough: if the peer forked, the child keeps the socket open after the peer has ended
  Descriptor process;
  Descriptor memory;  // the memory that the peer shares with all ranks of its host; empty: none
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
  std::string_view end_;  // how the peer ended; empty: it has not ended
};

}  // namespace tutti
