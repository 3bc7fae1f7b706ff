#pragma once

#include <vector>

#include "tutti/collectives/transport.h"

namespace tutti {

/// The Transport of a backend that consists of several backends, its parts. Messages travel through
/// the first part. progress() and arm() drive only the first part. abort, discard and goodbye go to
/// all parts. The parts are borrowed.
class JointTransport final : public Transport {
 public:
  struct Part {
    Transport* transport = nullptr;
    // by rank of this part: the rank in the first part; empty: both number the ranks equally
    std::vector<int> ranks = {};
  };
  explicit JointTransport(std::vector<Part> parts) : parts_(std::move(parts)) {}

  bool progress() override { return own().progress(); }
  bool arm() override { return own().arm(); }
  int descriptor() const override { return own().descriptor(); }
  void abort(const Error& error) noexcept override;

  int rank() const override { return own().rank(); }
  int size() const override { return own().size(); }
  Ticket isend(int peer, const MessageHeader& header, std::span<const std::byte> bytes) override {
    return own().isend(peer, header, bytes);
  }
  Ticket irecv(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) override {
    return own().irecv(peer, tag, key, bytes);
  }
  TransferState test(Ticket ticket, uint32_t* verdict) override {
    return own().test(ticket, verdict);
  }
  void cancel(Ticket ticket) override { own().cancel(ticket); }
  void discard(uint64_t first, uint64_t last) override;
  bool has_veto(uint64_t tag) const override { return own().has_veto(tag); }

  void post(int peer, std::span<const std::byte> message) override { own().post(peer, message); }
  bool take(int& peer, std::vector<std::byte>& message) override {
    return own().take(peer, message);
  }
  /// A peer that leaves is reported by the first part only. A peer is lost if any part loses it.
  std::optional<PeerEvent> take_event() override;
  void goodbye(double seconds) noexcept override;
  TransportCounters counters() const override { return own().counters(); }
  std::string_view route(int peer) const override { return own().route(peer); }
  /// Returns the shortest time of all parts. The data of one part may delay the messages of
  /// another, so a sign of life in any part is enough.
  double quiet_seconds(int peer) override;

 private:
  Transport& own() const { return *parts_.front().transport; }
  const std::vector<Part> parts_;
};

}  // namespace tutti
