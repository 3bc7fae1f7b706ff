#pragma once

#include <algorithm>
#include <cstdint>

#include "tutti/backends/channel.h"
#include "tutti/backends/stream/transfer.h"
#include "tutti/collectives/transport.h"

namespace tutti {

/// The outgoing half of one peer of a StreamCore. It turns sends and protocol messages into frames,
/// and writes the frames to the channel.
///
/// There are three queues. Protocol and control messages go first. After them, fresh sends and
/// granted sends take turns. A fresh send is written immediately if it is small and there is
/// credit; otherwise it is announced. A granted send gets one data frame per turn. A few frames at
/// a time move from the queues to the wire list, whose order is final.
class Outlet {
 public:
  struct Shared {
    NodePool<OutFrame>& frames;
    TransportCounters& counters;
  };
  /// `credit` is the total cost of unread messages that the peer may hold at any time. It is the
  /// same in both directions.
  Outlet(Shared shared, uint64_t& bytes_written, uint64_t credit)
      : shared_(shared),
        bytes_written_(bytes_written),
        most_credit_(credit),
        most_eager_(std::min<size_t>(kMaxEagerBytes, credit / 4)),
        credit_(credit) {}

  void send(Transfer* transfer) { fresh_.push(transfer); }
  /// Queues a protocol message without payload.
  void tell(const FrameHeader& header);
  /// Queues a control message. Returns false if too many bytes wait, because the peer does not
  /// read.
  bool post(std::span<const std::byte> message);
  /// grant() and refuse() handle the peer's answer to an announced send: the peer wants the
  /// message, or it does not.
  void grant(Transfer* transfer, Ticket remote);
  void refuse(Transfer* transfer);
  /// Gives up a send. When this returns, the send has ended and its memory is not read any more.
  void cancel(Transfer* transfer);
  /// Adds credit that the peer returned. Throws Error(corrupt_data) if the peer returns more than
  /// this side has used.
  void add_credit(uint64_t cost);
  /// Records that this side no longer holds messages of the peer that cost this much. The next
  /// eager message returns the credit. If half of the credit is owed before that, a credit frame
  /// returns it.
  void return_credit(uint64_t cost);
  /// Queues a goodbye behind all other frames.
  void leave() { leaving_ = true; }

  /// Writes the bytes that the channel takes and returns true if it took any. Throws whatever the
  /// channel throws.
  bool flush(Channel& channel);
  bool wants_write() const {
    return !wire_.empty() || !urgent_.empty() || !granted_.empty() || may_start() ||
           (leaving_ && !said_goodbye_);
  }
  /// Drops everything that is queued. The caller must fail the sends.
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
  size_t control_bytes_ = 0;  // bytes queued by post()
  const uint64_t most_credit_;
  // The size of the largest eager message. It is at most a quarter of the credit. So credit that
  // the peer owes but has not returned yet cannot block a message forever.
  const size_t most_eager_;
  uint64_t credit_;
  uint64_t owed_ = 0;  // credit that this side has not returned to the peer yet
  uint32_t announced_ = 0;
  bool granted_turn_ = false;
  bool leaving_ = false;
  bool said_goodbye_ = false;
};

}  // namespace tutti
