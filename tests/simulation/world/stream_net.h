#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/case.h"
#include "tests/simulation/links/sim_network.h"
#include "tests/simulation/world/net.h"
#include "tutti/backends/stream/stream_core.h"

namespace tutti::simulation {

class StreamNet;
class StreamBackend;

/// The shipped messages over simulated links. It reports posted messages to the world.
class SimStream final : public StreamCore {
 public:
  SimStream(StreamNet& net, int rank, std::vector<std::unique_ptr<Channel>> channels,
            uint64_t credit, EndHooks hooks);
  Ticket isend(int peer, const MessageHeader& header, std::span<const std::byte> bytes) override;
  Ticket irecv(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) override;
  TransferState test(Ticket ticket, uint32_t* verdict) override;
  void post(int peer, std::span<const std::byte> message) override;
  void end() { end_channels(); }

  struct Posted {
    Ticket ticket = 0;
    const std::byte* data = nullptr;
  };
  const std::vector<Posted>& posted() const { return posted_; }

 private:
  StreamNet& net_;
  const EndHooks hooks_;
  std::vector<Posted> posted_;  // not yet ended by test()
};

/// The links between the ranks of the bytes tier. Each link is one stream that may split every read
/// and write. The messages, credit and matching over it are the shipped code, and so are the
/// schedules of the collectives. SharedNet adds shared memory.
class StreamNet : public Net {
 public:
  StreamNet(Events& events, const World& world);
  ~StreamNet() override;
  std::unique_ptr<Backend> make_backend(int rank, const Context& context, EndHooks hooks) override;

  void begin_goodbye(int rank) override { stream(rank).begin_goodbye(); }
  bool is_written(int rank) override { return stream(rank).is_written(); }
  bool is_flushed(int rank) override { return stream(rank).is_flushed(); }
  void end(int rank) override { stream(rank).end(); }

  void kill(int rank) override { network_.kill(rank); }
  void reset(int one, int other) override;
  void half_open(int from, int to, Time until) override;
  void delay(int one, int other, int64_t more_micros) override;
  void clog(int one, int other, Time until) override;
  void slow(int one, int other, int64_t bytes_a_second) override;
  void damage(int from, int to, int64_t place) override;
  void heal() override;

  size_t operations_left(int rank) const override;
  size_t tickets_left(int rank) const override;
  size_t regions_left(int rank) const override;
  bool is_used(int rank, const std::byte* begin, size_t bytes) const override;

 protected:
  /// Returns the backend of this rank, which contains `rest`.
  virtual std::unique_ptr<Backend> over(int, const Context&, std::unique_ptr<Backend> rest,
                                        const EndHooks&) {
    return rest;
  }

 private:
  friend class SimStream;
  /// The properties of a link and its faults.
  struct Line {
    LinkShape shape;
    Micros more = 0;
    std::optional<uint64_t> bandwidth;
    bool is_half_open = false;
  };
  static size_t place(int rank) { return static_cast<size_t>(rank); }
  LinkShape draw_shape(int low, int high);
  Line& line(int one, int other) {
    return lines_[place(std::min(one, other)) * place(size_) + place(std::max(one, other))];
  }
  void meets_damage() {
    happens(Fault::Kind::damage);
    if (!damaged) damaged = events_.now();
  }
  std::optional<int64_t>& damage_of(int from, int to) {
    return damages_[place(from) * place(size_) + place(to)];
  }
  SimStream& stream(int rank) const;
  void meets(Fault::Kind kind, int one, int other);
  void cut(int one, int other);
  void set_speed(int one, int other);

  Events& events_;
  const World& world_;
  const int size_;
  std::vector<Line> lines_;                      // of each pair of ranks
  std::vector<std::optional<int64_t>> damages_;  // of the next control message
  LinkCounters counters_;                        // the links count in it; nothing reads it
  SimNetwork network_;
  std::vector<StreamBackend*> ends_;
};

}  // namespace tutti::simulation
