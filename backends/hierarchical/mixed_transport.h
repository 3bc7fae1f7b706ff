#pragma once

#include <memory>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// Combines two transports: messages to ranks of this host use `near`, and messages to other ranks
/// use `far`.
class MixedTransport final : public Transport {
 public:
  /// `near` connects `near_ranks`, which include this rank. In `near` a rank's number is its index
  /// in that list. `near` may be null. `far` connects all ranks.
  MixedTransport(std::unique_ptr<Transport> near, std::vector<int> near_ranks,
                 std::unique_ptr<Transport> far);
  ~MixedTransport() override;

  bool progress() override;
  bool arm() override;
  int descriptor() const override { return poller_.descriptor(); }
  void abort(const Error& error) noexcept override;

  int rank() const override { return far_->rank(); }
  int size() const override { return far_->size(); }
  Ticket isend(int peer, const MessageHeader& header, std::span<const std::byte> bytes) override;
  Ticket irecv(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) override;
  TransferState test(Ticket ticket, uint32_t* verdict) override;
  void cancel(Ticket ticket) override;
  void discard(uint64_t first, uint64_t last) override;
  bool has_veto(uint64_t tag) const override;

  void post(int peer, std::span<const std::byte> message) override;
  bool take(int& peer, std::vector<std::byte>& message) override;
  std::optional<PeerEvent> take_event() override;
  void goodbye(double seconds) noexcept override;
  TransportCounters counters() const override;
  std::string_view route(int peer) const override;
  double quiet_seconds(int peer) override {
    return way(peer).transport->quiet_seconds(way(peer).peer);
  }

 private:
  struct Way {
    Transport* transport = nullptr;
    int peer = -1;  // the peer's rank in `transport`
  };
  // The ticket of a message in the transport that carries it.
  struct Pending {
    uint32_t generation = 0;
    Transport* transport = nullptr;
    Ticket ticket = 0;
  };
  const Way& way(int peer) const { return ways_[static_cast<size_t>(peer)]; }
  Ticket keep(Transport* transport, Ticket ticket);
  Pending* find(Ticket ticket);

  const std::unique_ptr<Transport> near_;
  const std::vector<int> near_ranks_;
  const std::unique_ptr<Transport> far_;
  std::vector<Way> ways_;  // by rank: how messages get there
  std::vector<Pending> pending_;
  std::vector<uint32_t> free_;  // indices of unused entries in pending_
  uint64_t allocations_ = 0;
  Poller poller_;
};

}  // namespace tutti
