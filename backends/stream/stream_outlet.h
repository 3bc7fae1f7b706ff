#pragma once

#include <algorithm>
#include <cstdint>

#include "tutti/backends/channel.h"
#include "tutti/backends/stream/transfer.h"
#include "tutti/collectives/transport.h"

namespace tutti {

/// The outgoing half of one peer of a StreamCore: sends and protocol messages become frames,
/// frames become bytes in the channel.
///
/// Three queues: protocol and control messages, which go first; sends that the peer has not heard
/// of, in order, each of which travels at once if it is small and there is credit, else announces
/// itself; and granted sends, which take turns of one data frame. A few frames at a time move on to
/// the wire list, whose order is final.
class Outlet {
 public:
  struct Shared {
    NodePool<OutFrame>& frames;
    TransportCounters& counters;
  };
  /// `credit`: what the peer lets this side send before it is done with it; the same both ways.
  Outlet(Shared shared, uint64_t& bytes_written, uint64_t credit)
      : shared_(shared),
        bytes_written_(bytes_written),
        most_credit_(credit),
        most_eager_(std::min<size_t>(kMaxEagerBytes, credit / 4)),
        credit_(credit) {}

  void send(Transfer* transfer) { fresh_.push(transfer); }
  /// A protocol message without payload.
  void tell(const FrameHeader& header);
  /// False if more is queued than a peer that listens would let come together.
  bool post(std::span<const std::byte> message);
  /// The peer wants, or does not want, an announced send.
  void grant(Transfer* transfer, Ticket remote);
  void refuse(Transfer* transfer);
  /// Gives a send up; it is over now, and its memory is not read any more.
  void cancel(Transfer* transfer);
  /// Throws Error(corrupt_data) if the peer returns more credit than there is.
  void add_credit(uint64_t cost);
  /// This side is done with messages of the peer that cost so much. The peer is told with the next
  /// eager message; by a frame of its own only if none comes for long.
  void return_credit(uint64_t cost);
  /// After everything else, says goodbye.
  void leave() { leaving_ = true; }

  /// Writes what the channel takes; true if that was something. Throws what the channel throws.
  bool flush(Channel& channel);
  bool wants_write() const {
    return !wire_.empty() || !urgent_.empty() || !granted_.empty() || may_start() ||
           (leaving_ && !said_goodbye_);
  }
  /// Forgets everything; the sends themselves are the transport's to fail.
  void clear();

 private:
  bool may_start() const;
  bool put_next_on_wire();
  OutFrame* make_frame(const FrameHeader& header);
  OutFrame* start(Transfer* transfer);
  OutFrame* data_of(Transfer* transfer);
  void written(size_t bytes);
  void frame_through(OutFrame* frame);
  void leave_alone(OutFrame* frame);
  void withdraw(Transfer* transfer);
  void release(OutFrame* frame);

  Shared shared_;
  uint64_t& bytes_written_;
  NodeQueue<OutFrame> urgent_;
  NodeQueue<Transfer> fresh_;
  NodeQueue<Transfer> granted_;
  NodeQueue<OutFrame> wire_;
  size_t wire_frames_ = 0;
  size_t wire_bytes_ = 0;
  size_t control_bytes_ = 0;  // queued by post()
  const uint64_t most_credit_;
  const size_t most_eager_;  // so that what is owed and not told never stops a message for good
  uint64_t credit_;
  uint64_t owed_ = 0;  // credit of the peer, to be returned
  uint32_t announced_ = 0;
  bool granted_turn_ = false;
  bool leaving_ = false;
  bool said_goodbye_ = false;
};

}  // namespace tutti
