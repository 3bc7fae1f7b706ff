#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/backends/channel.h"
#include "tutti/backends/stream/eager_buffers.h"
#include "tutti/backends/stream/stream_inlet.h"
#include "tutti/backends/stream/stream_outlet.h"
#include "tutti/backends/stream/tag_set.h"
#include "tutti/backends/stream/transfer.h"
#include "tutti/collectives/transport.h"

namespace tutti {

/// The Transport over Channels. It runs one protocol (frame.h) for memory, shm, tcp and any mix of
/// them. It matches messages with receives; each peer's Inlet and Outlet move the bytes.
///
/// Small messages are sent immediately. If their receive is not posted yet, they wait at the
/// receiver, bounded by credit. Larger messages wait at the sender, so that they block nothing. All
/// records come from pools, so that no message allocates once the pools are warm.
///
/// The class uses no threads, clocks or descriptors. Its owner decides when to call progress().
/// StreamTransport adds what a sleeping thread needs.
class StreamCore : public Transport, private Inlet::Reader {
 public:
  /// `channels[rank]` is null. `credit` is at least 512 and the same on all ranks. It bounds the
  /// cost of one peer's messages that wait on this rank. A message that costs more than a quarter
  /// of the credit is announced instead of being sent immediately.
  StreamCore(int rank, std::vector<std::unique_ptr<Channel>> channels,
             std::optional<uint64_t> credit = {});

  bool progress() override;
  bool arm() override;
  int descriptor() const override { return -1; }  // there is nothing to sleep on
  /// Only the thread that calls progress() may call this. The next progress() fails everything
  /// pending.
  void abort(const Error&) noexcept override { abort_asked_ = true; }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  Ticket isend(int peer, const MessageHeader& header, std::span<const std::byte> bytes) override;
  Ticket irecv(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) override;
  TransferState test(Ticket ticket, uint32_t* verdict) override;
  void cancel(Ticket ticket) override;
  void discard(uint64_t first, uint64_t last) override;
  bool has_veto(uint64_t tag) const override;

  void post(int peer, std::span<const std::byte> message) override;
  bool take(int& peer, std::vector<std::byte>& message) override;
  std::optional<PeerEvent> take_event() override;
  /// Queues the goodbyes and writes the bytes that the channels take immediately. It does not wait
  /// for the rest, because it has no clock.
  void goodbye(double seconds) noexcept override;
  /// Queues a goodbye to every peer, behind all messages that are queued.
  void begin_goodbye();
  /// Returns whether the channels have taken all bytes, including the goodbyes.
  bool is_written() const;
  /// Returns whether all bytes have also reached the peers' hosts, so that they arrive even if this
  /// rank ends. Returns true after an abort. A rank that leaves keeps reading until then: closing a
  /// connection with unread bytes resets it, and the reset drops bytes that are still on their way
  /// to the peer. Nothing wakes a sleeping thread when the result changes.
  bool is_flushed();
  TransportCounters counters() const override { return counters_; }
  std::string_view route(int peer) const override;
  double quiet_seconds(int peer) override;

 protected:
  /// Fails everything pending, as requested by abort().
  void fail_everything();
  void watch_channels(Poller& poller);
  /// Closes all channels. This must happen before the poller that watches them is destroyed.
  void end_channels() noexcept;

 private:
  struct Peer {
    Peer(int number, Outlet::Shared shared, uint64_t& bytes_written, uint64_t credit)
        : rank(number), outlet(shared, bytes_written, credit) {}

    const int rank;
    std::unique_ptr<Channel> channel;  // null once the peer is gone
    std::string route;
    Outlet outlet;
    Inlet inlet;
    // The payload that is being read, eager or data, belongs to one of these two. If both are null,
    // the payload is thrown away.
    Transfer* receive = nullptr;
    Arrival* arrival = nullptr;
    std::vector<std::byte> control;
    bool said_goodbye = false;
    uint64_t eager_held = 0;      // cost of the peer's eager messages that wait on this rank
    uint32_t announces_held = 0;  // the peer's announcements that wait for a receive
    size_t inbox_bytes = 0;       // bytes of the peer's control messages that wait for take()
  };
  struct ControlMessage {
    int peer = -1;
    std::vector<std::byte> bytes;
  };

  std::byte* frame_begins(int peer, const FrameHeader& frame) override;
  void frame_ends(int peer, const FrameHeader& frame) override;
  /// Returns the receive that was posted for the frame's message, and removes it from the table.
  /// Returns null if there is none.
  Transfer* take_posted(const Peer& peer, const FrameHeader& frame);
  /// Records the frame's message as an arrival, which waits for its receive.
  Arrival* arrive(const Peer& peer, const FrameHeader& frame);
  std::byte* eager_begins(Peer& peer, const FrameHeader& frame);
  void announced(Peer& peer, const FrameHeader& frame);
  void withdrawn(Peer& peer, const FrameHeader& frame);
  std::byte* data_begins(Peer& peer, const FrameHeader& frame);

  Peer& peer_at(int rank);
  Transfer* make_transfer(int peer, uint64_t tag, uint32_t key, bool is_send, size_t bytes);
  /// Returns the transfer that a ticket refers to, or null if the ticket is not in use.
  Transfer* find(Ticket ticket);
  Transfer* find_send(const Peer& peer, Ticket ticket, Transfer::Stage stage);
  void match(Transfer* receive);
  void take_arrival(Transfer* receive, Arrival* arrival);
  void grant_or_refuse(Peer& peer, Transfer* receive, size_t bytes, Ticket remote);
  void finish(Transfer* transfer, Transfer::Stage stage);
  void forget_arrival(Arrival* arrival);
  void return_credit(Peer& peer, uint64_t cost);

  bool pump(Peer& peer);
  bool drain(Peer& peer);
  void lose(Peer& peer, const std::string& detail);
  void fail_all(int peer);

  const int rank_;
  const uint64_t credit_;  // credit per pair of ranks and direction
  TransportCounters counters_;
  bool abort_asked_ = false;
  bool aborted_ = false;  // abort() was called, and everything pending has failed

  NodePool<Transfer> transfers_;
  NodePool<Arrival> arrival_nodes_;
  NodePool<OutFrame> frames_;
  EagerBuffers buffers_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null for this rank

  MatchTable<Transfer> posted_;
  MatchTable<Arrival> arrivals_;
  size_t vetoes_here_ = 0;  // number of arrivals whose verdict is a veto
  // receives that got a message with a veto, until test() reports their result
  std::vector<Transfer*> vetoed_;
  TagSet discarded_;
  std::deque<ControlMessage> inbox_;
  std::vector<std::vector<std::byte>> spare_;  // buffers of control messages for reuse
  std::deque<PeerEvent> events_;
};

}  // namespace tutti
