#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/world/sim_net.h"

namespace tutti::simulation {

/// One operation of one rank. Its result exists once all ranks of the operation have started it and
/// this rank has called progress().
class SimOperation final : public tutti::Operation {
 public:
  SimOperation(SimBackend& end, const Collective& collective, const Launch& launch);
  ~SimOperation() override;
  OperationState advance() override;
  void cancel() override;
  const Error* failure() const override { return failure_ ? &*failure_ : nullptr; }
  bool lacks_ranks() const override { return !resolved_; }

 private:
  friend class SimNet;
  friend class SimBackend;
  const std::byte* input() const;
  bool is_blocking() const { return !name_.empty(); }
  void bring();

  SimBackend* end_;
  const uint64_t id_;
  Collective collective_;
  std::vector<int64_t> send_counts_, recv_counts_;
  Launch launch_;
  std::string name_;
  SimNet::Key key_;
  std::vector<std::byte> packed_;  // the data after packing
  std::vector<std::byte> result_;  // the operation's result
  std::optional<Error> failure_;
  std::shared_ptr<bool> goes_well_;  // shared by all operations that resolved together
  bool resolved_ = false;            // its end is scheduled
  bool is_cancelled_ = false;
  OperationState coming_ = OperationState::pending;  // the real state
  bool is_seen_ = false;                             // progress() has seen the state
  OperationState state_ = OperationState::pending;   // the state that the caller has seen
};

/// One rank's end of the simulated network. An arrival becomes visible only in progress(), and only
/// a rank that has armed its backend is woken.
class SimBackend final : public Backend, private Transport {
 public:
  SimBackend(SimNet& net, int rank);
  ~SimBackend() override;

  /// Called when something arrives for a rank that has armed its backend.
  std::function<void()> on_wake;
  /// Called before each start. It may throw, or return true for an operation that fails without a
  /// cause.
  std::function<bool(const Collective&, const Launch&)> on_start;
  /// Called for each control message that is posted.
  std::function<void(int to, std::span<const std::byte>)> on_post;
  size_t regions() const { return *regions_; }
  /// Returns the number of control messages that were never taken.
  size_t messages_left() const { return inbox_.size(); }

  Capabilities capabilities() const override;
  std::unique_ptr<Region> allocate(size_t bytes, Device device) override;
  bool packs_itself(const Collective& collective, const Launch& launch) const override;
  OperationPtr start(const Collective& collective, const Launch& launch) override;
  bool works_elsewhere() const override { return net_.traits_.works_elsewhere; }
  std::string_view algorithm(const Collective&) const override { return "simulated"; }
  std::vector<int> missing(int queue) const override;
  Transport* transport() override { return this; }
  bool progress() override;
  bool arm() override;
  int descriptor() const override { return -1; }
  void abort(const Error& error) noexcept override;

 private:
  friend class SimNet;
  friend class SimOperation;
  struct Arrival {
    enum class Kind : uint8_t { message, event, operation, ticket } kind;
    int from = -1;
    std::vector<std::byte> bytes = {};
    PeerEvent event = {};
    uint64_t id = 0;
  };
  void arrive(Arrival arrival);
  void check(const Collective& collective) const;

  int rank() const override { return rank_; }
  int size() const override { return net_.size_; }
  Ticket isend(int peer, const MessageHeader& header, std::span<const std::byte> bytes) override;
  Ticket irecv(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) override;
  TransferState test(Ticket ticket, uint32_t* verdict) override;
  void cancel(Ticket ticket) override { net_.cancel(rank_, ticket); }
  void discard(uint64_t first, uint64_t last) override { net_.discard(rank_, first, last); }
  bool has_veto(uint64_t tag) const override;
  void post(int peer, std::span<const std::byte> message) override;
  bool take(int& peer, std::vector<std::byte>& message) override;
  std::optional<PeerEvent> take_event() override;
  void goodbye(double seconds) noexcept override;
  TransportCounters counters() const override { return counters_; }
  TransportCounters counters() override { return counters_; }
  std::string_view route(int) const override { return "simulated"; }
  double quiet_seconds(int peer) override;

  SimNet& net_;
  const int rank_;
  std::deque<Arrival> arrivals_;  // not yet seen by progress()
  std::deque<std::pair<int, std::vector<std::byte>>> inbox_;
  std::deque<PeerEvent> peer_events_;
  std::vector<bool> has_left_;  // peers that left on purpose
  std::vector<bool> is_gone_;   // peers whose link has ended
  std::vector<SimNet::Time> heard_;
  std::shared_ptr<size_t> regions_ = std::make_shared<size_t>(0);
  TransportCounters counters_;
  bool is_armed_ = false, has_news_ = false, is_over_ = false;
};

}  // namespace tutti::simulation
