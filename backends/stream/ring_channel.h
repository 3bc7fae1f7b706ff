#pragma once

#include <string_view>

#include "tutti/backends/channel.h"
#include "tutti/backends/stream/ring_buffer.h"

namespace tutti {

/// A Channel over two rings and two bells, for the memory and shm backends. Derived classes own the
/// memory and detect the end of the peer.
class RingChannel : public Channel {
 public:
  ~RingChannel() override;
  size_t write(std::span<const iovec> parts) override;
  size_t read(std::span<std::byte> bytes) override;
  bool arm(bool wants_write) override;
  void watch(Poller& poller) override;

 protected:
  /// This side sleeps on `own`, which the peer rings. The peer sleeps on `peer`, which this side
  /// rings. Both bells must outlive the channel.
  RingChannel(RingConsumer in, RingProducer out, const Bell& own, const Bell& peer)
      : in_(in), out_(out), own_(own), peer_(peer) {}

  /// Returns how the peer ended, or an empty text if it has not ended. Called by each read that
  /// finds nothing and by arm(). If `carefully` is true, the kernel must be asked; otherwise an
  /// older answer is enough.
  virtual std::string_view look_for_end(bool carefully) = 0;
  /// Watches a descriptor of the derived class until the channel is destroyed.
  void also_watch(int descriptor, unsigned events);
  const Bell& peer_bell() const { return peer_; }
  /// Removes all descriptors from the poller. The derived class's destructor must call this while
  /// they are open.
  void forget_all();

 private:
  RingConsumer in_;
  RingProducer out_;
  const Bell& own_;
  const Bell& peer_;
  Poller* poller_ = nullptr;
  int watched_[3] = {-1, -1, -1};
  bool moved_ = false;  // bytes have moved since the last arm()
  // true if the peer has cleared a flag of this side since own_ was last silenced; then own_ may be
  // readable
  bool may_be_rung_ = false;
};

/// Returns the size of each ring if `ranks` ranks are all connected with each other. It is 1 MiB
/// for a few ranks. For many ranks it is smaller, at least 64 KiB, so that all rings of a host
/// together take about 64 MiB.
size_t ring_bytes_for(int ranks);

}  // namespace tutti
