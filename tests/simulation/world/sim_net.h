#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "tests/simulation/case.h"
#include "tests/simulation/events.h"
#include "tests/simulation/random.h"
#include "tests/simulation/world/net.h"

namespace tutti::simulation {

class SimBackend;
class SimOperation;

/// The properties of the backends of one simulated network, and its speed.
struct SimTraits {
  Micros latency = 100;
  int far = 0;            // as in World
  int64_t bandwidth = 0;  // bytes a second of a link; 0: without limit
  bool cannot_cancel = false;
  bool fails_before_reason = false;
  bool works_elsewhere = false;
  bool serves_blocking = true;
  bool packs = false;       // the backend has its own memory for buckets
  size_t eager_bytes = 64;  // longer messages wait at their sender
  uint64_t salt = 0;        // seed of all that is drawn
};

/// The model network: links with their faults, the operations that the ranks have started, and
/// messages under way. Everything that takes time is an event.
class SimNet final : public Net {
 public:
  SimNet(Events& events, int size, const SimTraits& traits);
  ~SimNet() override;
  std::unique_ptr<SimBackend> make_end(int rank);
  std::unique_ptr<Backend> make_backend(int rank, const Context& context, EndHooks hooks) override;

  // A goodbye takes no time here.
  void begin_goodbye(int rank) override;
  bool is_written(int) override { return true; }
  bool is_flushed(int) override { return true; }
  void end(int) override {}

  // --- faults ---
  void kill(int rank) override;
  void reset(int one, int other) override;
  void half_open(int from, int to, Time until) override;
  void delay(int one, int other, Micros more) override;
  void clog(int one, int other, Time until) override;
  void slow(int one, int other, int64_t bytes_a_second) override;
  void damage(int from, int to, int64_t place) override { link(from, to).damage = place; }
  void heal() override;

  size_t operations_left(int rank) const override;
  size_t tickets_left(int rank) const override { return tickets_.at(place(rank)).size(); }
  size_t regions_left(int rank) const override;
  bool is_used(int rank, const std::byte* begin, size_t bytes) const override;

 private:
  friend class SimBackend;
  friend class SimOperation;

  struct Link {
    Time last_arrival, last_of_all, free_at, clogged_until, half_open_until;
    Micros more = 0;
    int64_t bandwidth = 0;
    bool ended = false;    // nothing more is written to it
    bool dropped = false;  // bytes were lost on it
    std::optional<int64_t> damage;
  };
  // The key of an operation: the queue, the tag, and for pairs the two ranks.
  using Key = std::tuple<int, uint64_t, int, int>;
  struct Meeting {
    std::vector<SimOperation*> operations;  // by rank; null: that rank has not started it
    int needed = 0, came = 0;
    bool is_pair = false;
  };
  struct SimTicket {
    bool sends = false, in_transfer = false;
    int peer = -1;
    uint64_t tag = 0;
    uint32_t key = 0, verdict = 0;
    std::byte* data = nullptr;
    size_t bytes = 0;
    TransferState state = TransferState::pending;  // the real state
    TransferState seen = TransferState::pending;   // the state that progress() has shown
  };
  struct Message {
    std::vector<std::byte> bytes;
    size_t length = 0;
    uint32_t verdict = 0;
    Ticket sender = 0;  // the sender whose memory has the bytes; 0: `bytes` has them
  };
  struct Box {  // the messages and receives from one rank to another with one tag and key
    std::deque<Message> messages;
    std::deque<Ticket> receives;
  };
  using BoxKey = std::tuple<int, int, uint64_t, uint32_t>;

  static size_t place(int rank) { return static_cast<size_t>(rank); }
  Link& link(int from, int to) { return links_[place(from) * place(size_) + place(to)]; }
  Time now() const { return events_.now(); }
  static Clock::duration micros(int64_t count) { return std::chrono::microseconds(count); }
  Clock::duration draw_delay(Micros most) { return micros(random_.between(0, most)); }
  /// Returns when bytes that are written now arrive, or nothing if they are lost.
  std::optional<Time> arrival(int from, int to, size_t bytes);
  std::optional<Time> control_arrival(int from, int to, size_t bytes);
  void post(int from, int to, std::span<const std::byte> message);
  void end_link(int from, int to, PeerEvent::Kind kind, const std::string& detail);
  void on_link_end(int from, int to, PeerEvent::Kind kind, const std::string& detail);
  void cut(int one, int other);
  void end_all_links(int rank, PeerEvent::Kind kind, const std::string& detail);

  // --- operations ---
  void join(SimOperation& operation);
  void withdraw(SimOperation& operation);
  void resolve(Meeting& meeting);
  std::string disagreement(const Meeting& meeting) const;
  void compute(Meeting& meeting);
  void end_later(SimOperation& operation, OperationState state, Clock::duration delay);
  void fail_what_needs(int rank, int peer, bool resolved_too);
  bool needs(const SimOperation& operation, int peer) const;

  // --- messages with tags ---
  Ticket send(int from, int to, const MessageHeader& header, std::span<const std::byte> bytes);
  Ticket receive(int rank, int from, uint64_t tag, uint32_t key, std::span<std::byte> bytes);
  void match(const BoxKey& key);
  void finish(int rank, Ticket ticket, TransferState state);
  void cancel(int rank, Ticket ticket);
  void discard(int rank, uint64_t first, uint64_t last);
  void fail_tickets(int rank, int peer);

  Events& events_;
  const int size_;
  const SimTraits traits_;
  Random random_;
  std::vector<Link> links_;
  std::vector<SimBackend*> ends_;  // null if the rank is gone
  std::map<Key, std::unique_ptr<Meeting>> meetings_;
  std::map<uint64_t, SimOperation*> operations_;  // by their ids
  uint64_t last_id_ = 0;
  std::vector<std::map<Ticket, SimTicket>> tickets_;  // of each rank
  std::map<BoxKey, Box> boxes_;
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> discarded_;  // tags, of each rank
  std::vector<std::map<std::pair<int, int>, uint64_t>> pair_calls_;    // blocking ones so far
};

}  // namespace tutti::simulation
