#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "tutti/collectives/transport.h"

namespace tutti::simulation {

/// A transport of a simulated world that threads share: each call takes the world's lock. What
/// moves it, and how it sleeps and leaves, is for those that derive.
class LockedTransport : public Transport {
 public:
  int rank() const override { return inner().rank(); }
  int size() const override { return inner().size(); }
  Ticket isend(int peer, const MessageHeader& header, std::span<const std::byte> bytes) override {
    const Held lock(mutex_);
    return inner().isend(peer, header, bytes);
  }
  Ticket irecv(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) override {
    const Held lock(mutex_);
    return inner().irecv(peer, tag, key, bytes);
  }
  TransferState test(Ticket ticket, uint32_t* verdict) override {
    const Held lock(mutex_);
    return inner().test(ticket, verdict);
  }
  void cancel(Ticket ticket) override {
    const Held lock(mutex_);
    inner().cancel(ticket);
  }
  void discard(uint64_t first, uint64_t last) override {
    const Held lock(mutex_);
    inner().discard(first, last);
  }
  bool has_veto(uint64_t tag) const override {
    const Held lock(mutex_);
    return inner().has_veto(tag);
  }
  void post(int peer, std::span<const std::byte> message) override {
    const Held lock(mutex_);
    inner().post(peer, message);
  }
  bool take(int& peer, std::vector<std::byte>& message) override {
    const Held lock(mutex_);
    return inner().take(peer, message);
  }
  std::optional<PeerEvent> take_event() override {
    const Held lock(mutex_);
    return inner().take_event();
  }
  TransportCounters counters() const override {
    const Held lock(mutex_);
    return inner().counters();
  }
  std::string_view route(int peer) const override { return inner().route(peer); }

 protected:
  using Held = std::lock_guard<std::recursive_mutex>;
  explicit LockedTransport(std::recursive_mutex& mutex) : mutex_(mutex) {}
  virtual Transport& inner() const = 0;

 private:
  std::recursive_mutex& mutex_;
};

}  // namespace tutti::simulation
