#pragma once

#include <string_view>

#include "tutti/backends/channel.h"
#include "tutti/backends/stream/ring_buffer.h"

namespace tutti {

/// A Channel over two rings and two doorbells: what memory and shm have in common. Derived classes
/// own the memory and know how a peer's end is seen.
class RingChannel : public Channel {
 public:
  ~RingChannel() override;
  size_t write(std::span<const iovec> parts) override;
  size_t read(std::span<std::byte> bytes) override;
  bool arm(bool wants_write) override;
  void watch(Poller& poller) override;

 protected:
  /// `own` is watched by this side and rung by the peer; `peer` the other way round. Both must
  /// outlive the channel.
  RingChannel(RingConsumer in, RingProducer out, const Bell& own, const Bell& peer)
      : in_(in), out_(out), own_(own), peer_(peer) {}

  /// What is known of the peer's end: empty while it is there, else a text that says what was seen.
  /// Called on each read that finds nothing, and `carefully` before sleeping.
  virtual std::string_view look_for_end(bool carefully) = 0;
  /// Watches a descriptor of the derived class until the channel is destroyed.
  void also_watch(int descriptor, unsigned events);
  const Bell& peer_bell() const { return peer_; }
  /// Must be called by the derived class's destructor, while the descriptors are open.
  void forget_all();

 private:
  RingConsumer in_;
  RingProducer out_;
  const Bell& own_;
  const Bell& peer_;
  Poller* poller_ = nullptr;
  int watched_[3] = {-1, -1, -1};
  bool moved_ = false;        // bytes, since the last arm()
  bool may_be_rung_ = false;  // own_, since it was silenced: the peer took a flag of this side down
};

/// How large each ring of `ranks` ranks that are all connected with each other should be: 1 MiB for
/// a few, less for many, so that all of a host's rings together stay within about 64 MiB.
size_t ring_bytes_for(int ranks);

}  // namespace tutti
