#pragma once

#include <string_view>

#include "tutti/backends/channel.h"
#include "tutti/backends/stream/ring_buffer.h"

namespace tutti {

/// A Channel over two rings and two doorbells, for the memory and shm backends. Derived classes own
/// the memory and detect the end of the peer.
class RingChannel : public Channel {
 public:
  ~RingChannel() override;
  size_t write(std::span<const iovec> parts) override;
  size_t read(std::span<std::byte> bytes) override;
  bool arm(bool wants_write) override;
  void watch(Poller& poller) override;

 protected:
  /// This side watches `own`, and the peer rings it. For `peer` it is the other way round. Both
  /// must outlive the channel.
  RingChannel(RingConsumer in, RingProducer out, const Bell& own, const Bell& peer)
      : in_(in), out_(out), own_(own), peer_(peer) {}

  /// Returns how the peer ended, or an empty text while it is there. Called by each read that finds
  /// nothing and by arm(). If `carefully`, the answer must be up to date; else an older one will
  /// do.
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
  // own_ may be readable: the peer has cleared a flag of this side since own_ was last silenced
  bool may_be_rung_ = false;
};

/// Returns the size of each ring if `ranks` ranks are all connected with each other: 1 MiB for a
/// few ranks and less for many, so that all rings of a host together take about 64 MiB. Every ring
/// has at least 64 KiB.
size_t ring_bytes_for(int ranks);

}  // namespace tutti
