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

/// The functions through which the backend of a rank notifies that rank.
struct EndHooks {
  /// Called when something arrives for a rank that has armed its backend.
  std::function<void()> on_wake;
  /// Called before each start. It may throw, or return true for an operation that fails without a
  /// cause.
  std::function<bool(const Collective&, const Launch&)> on_start;
  /// Called for each control message that is posted.
  std::function<void(int to, std::span<const std::byte>)> on_post;
};

/// The network between the simulated ranks, with its faults. Each tier has its own: SimNet,
/// StreamNet and SharedNet. It must outlive the backends that it makes.
class Net {
 public:
  using Time = Events::Time;
  virtual ~Net() = default;
  virtual std::unique_ptr<Backend> make_backend(int rank, const Context& context,
                                                EndHooks hooks) = 0;

  // --- leaving ---
  virtual void begin_goodbye(int rank) = 0;
  /// Return whether everything is written, and whether all of it has reached the peers' hosts.
  virtual bool is_written(int rank) = 0;
  virtual bool is_flushed(int rank) = 0;
  /// The communicator of this rank is destroyed. Its backend makes no more progress.
  virtual void end(int rank) = 0;

  // --- faults ---
  virtual void kill(int rank) = 0;
  virtual void reset(int one, int other) = 0;
  virtual void half_open(int from, int to, Time until) = 0;
  virtual void delay(int one, int other, int64_t more_micros) = 0;
  virtual void clog(int one, int other, Time until) = 0;
  virtual void slow(int one, int other, int64_t bytes_a_second) = 0;
  virtual void damage(int from, int to, int64_t place) = 0;
  /// Ends all faults of links.
  virtual void heal() = 0;

  // --- remains ---
  /// The operations that this rank has not released, the messages that it has posted and still asks
  /// for, and the memory that it has not freed.
  virtual size_t operations_left(int rank) const = 0;
  virtual size_t tickets_left(int rank) const = 0;
  virtual size_t regions_left(int rank) const = 0;
  /// Returns whether an unfinished operation uses this memory.
  virtual bool is_used(int rank, const std::byte* begin, size_t bytes) const = 0;

  /// Returns whether a peer wrote to memory of this rank that had been given back.
  virtual bool is_written_late(int) const { return false; }

  /// Errors: what ranks demanded of a backend against its contract, or what a shipped backend
  /// failed to do.
  std::vector<std::string> broken_promises;
  /// The kinds of faults that had an effect.
  FaultKinds faults;
  /// The events in shared memory.
  Sights sights;
  std::optional<Time> damaged;

 protected:
  void happens(Fault::Kind kind) { faults.set(static_cast<size_t>(kind)); }
  void sees(Sight sight) { sights.set(static_cast<size_t>(sight)); }
};

/// A region that its backend counts.
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
