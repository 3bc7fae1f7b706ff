#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "tutti/base/sync.h"
#include "tutti/core/threads/door.h"

namespace tutti {

/// The program's threads put their requests here, and the thread that runs the engine takes them.
/// The lock also guards other data that these threads share. There are two batches that are
/// swapped, so that steady use allocates nothing.
///
/// During a plan (a recorded step), the thread that runs the engine waits for a certain number of
/// bytes of that plan. It states this number before it sleeps. Calls of this plan do not wake it
/// until they add up to that number.
///
/// The type Batch must have a list `operations`.
template <class Batch, class Sync = Threads>
class HandOverOf {
 public:
  using Lock = std::lock_guard<typename Sync::Mutex>;
  Lock lock() const { return Lock(mutex_); }

  // --- the program's threads ---
  /// Returns the batch that the engine takes next.
  Batch& offered(const Lock&) {
    Sync::writes(&offered_);
    return offered_;
  }
  /// Returns the sequence number of an operation that is added now. The first one gets 1.
  uint64_t number(const Lock&) { return ++numbered_; }
  /// Counts `bytes` of an added operation. `fits` is true if the operation belongs to `plan` and
  /// has the properties that the plan expects.
  void count(const Lock&, int64_t bytes, uint32_t plan, bool fits) {
    Sync::writes(&quiet_bytes_);
    offered_bytes_ += bytes;
    if (plan != quiet_plan_ || !fits) quiet_bytes_ = 0;
  }
  /// Returns whether the call must wake the sleeping thread.
  bool must_ring(const Lock&) const {
    Sync::reads(&quiet_bytes_);
    return offered_bytes_ >= quiet_bytes_;
  }

  // --- the door: any thread reads it; the lock guards its changes (except break_door()) ---
  Door door() const { return door_.load(); }
  bool lets_in() const { return tutti::lets_in(door()); }
  void move_door(const Lock&, Door to) { door_ = to; }
  /// Sets the door to broken. Takes no lock, because it is called when even making an error has
  /// failed.
  void break_door() { door_ = Door::broken; }
  /// Called when the program closes its communicator. Returns false if it was already closed.
  bool close(const Lock&) {
    Sync::writes(&is_closed_);
    if (std::exchange(is_closed_, true)) return false;
    door_ = after_close(door());
    return true;
  }
  bool is_closed(const Lock&) const {
    Sync::reads(&is_closed_);
    return is_closed_;
  }

  // --- the thread that runs the engine ---
  /// Returns everything that was added since the last call. The caller must empty the batch before
  /// the next call. From now on every call of the program wakes the engine.
  Batch& take() {
    const Lock lock(mutex_);
    Sync::writes(&offered_);
    Sync::writes(&quiet_bytes_);
    Sync::writes(&taken_);
    std::swap(offered_, taken_);
    offered_bytes_ = quiet_bytes_ = 0;
    return taken_;
  }
  /// Called before a sleep. The thread may then sleep until `bytes` of this plan were added. If
  /// `bytes` is 0, it may sleep until anything was added. Returns false if something was added
  /// after take(). The caller must then not sleep.
  bool be_quiet(int64_t bytes, uint32_t plan) {
    const Lock lock(mutex_);
    Sync::reads(&offered_);
    Sync::writes(&quiet_bytes_);
    if (!offered_.operations.empty()) return false;
    quiet_bytes_ = bytes;
    quiet_plan_ = plan;
    return true;
  }

 private:
  typename Sync::template Atomic<Door> door_{Door::open};
  mutable typename Sync::Mutex mutex_;  // guards the members below
  Batch offered_;
  // A thread that sleeps during a plan must wake once the program's calls have added this many
  // bytes of the plan. 0: every call wakes it.
  int64_t quiet_bytes_ = 0;
  uint32_t quiet_plan_ = 0;
  int64_t offered_bytes_ = 0;
  uint64_t numbered_ = 0;
  bool is_closed_ = false;

  Batch taken_;  // used only by the thread that runs the engine
};

}  // namespace tutti
