#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/simulation/case.h"
#include "tests/simulation/events.h"
#include "tests/simulation/record.h"
#include "tutti/backends/backend.h"

namespace tutti::simulation {

/// What the backend of one rank tells that rank.
struct EndHooks {
  /// Called when something comes for a rank that has armed.
  std::function<void()> on_wake;
  /// Called before each start; may throw, or return true for an operation that fails by itself.
  std::function<bool(const Collective&, const Launch&)> on_start;
  /// Told of each control message that is posted.
  std::function<void(int to, std::span<const std::byte>)> on_post;
};

/// All that lies between the simulated ranks, and what goes wrong there. Each tier has one: SimNet,
/// StreamNet and SharedNet. Must outlive the backends that it makes.
class Net {
 public:
  using Time = Events::Time;
  virtual ~Net() = default;
  virtual std::unique_ptr<Backend> make_backend(int rank, const Context& context,
                                                EndHooks hooks) = 0;

  // --- leaving ---
  virtual void begin_goodbye(int rank) = 0;
  /// Whether nothing is left to be written, and whether all of it has reached the peers' hosts.
  virtual bool is_written(int rank) = 0;
  virtual bool is_flushed(int rank) = 0;
  /// The communicator of this rank is destroyed; it is not moved any more.
  virtual void end(int rank) = 0;

  // --- faults ---
  virtual void kill(int rank) = 0;
  virtual void reset(int one, int other) = 0;
  virtual void half_open(int from, int to, Time until) = 0;
  virtual void delay(int one, int other, int64_t more_micros) = 0;
  virtual void clog(int one, int other, Time until) = 0;
  virtual void slow(int one, int other, int64_t bytes_a_second) = 0;
  virtual void damage(int from, int to, int64_t place) = 0;
  /// All faults of links are over.
  virtual void heal() = 0;

  // --- remains ---
  /// Operations that this rank has not released yet, messages that it has posted and not asked for
  /// any more, and memory that it took and did not free.
  virtual size_t operations_left(int rank) const = 0;
  virtual size_t tickets_left(int rank) const = 0;
  virtual size_t regions_left(int rank) const = 0;
  /// Whether an operation that is not over works in this memory.
  virtual bool is_used(int rank, const std::byte* begin, size_t bytes) const = 0;

  /// Whether a peer wrote to memory of this rank that had been given back.
  virtual bool is_written_late(int) const { return false; }

  /// Lists what ranks did that no backend has to bear, and what a shipped one did not do.
  std::vector<std::string> broken_promises;
  /// The faults that met something, and when the first message got a wrong byte.
  FaultKinds faults;
  /// Counts what was done in shared memory.
  Sights sights;
  std::optional<Time> damaged;

 protected:
  void happens(Fault::Kind kind) { faults.set(static_cast<size_t>(kind)); }
  void sees(Sight sight) { sights.set(static_cast<size_t>(sight)); }
};

/// Memory that its backend counts.
class CountedRegion final : public Region {
 public:
  CountedRegion(std::unique_ptr<Region> memory, std::shared_ptr<size_t> count)
      : memory_(std::move(memory)), count_(std::move(count)) {
    ++*count_;
  }
  ~CountedRegion() override { --*count_; }
  std::byte* data() const override { return memory_->data(); }
  size_t bytes() const override { return memory_->bytes(); }

 private:
  const std::unique_ptr<Region> memory_;
  const std::shared_ptr<size_t> count_;
};

}  // namespace tutti::simulation
