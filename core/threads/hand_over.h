#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "tutti/base/sync.h"
#include "tutti/core/threads/door.h"

namespace tutti {

/// The program's threads put down here what they want done, and the holder of the token takes it
/// from here. Its lock guards what those threads share besides. Two batches change places, so that
/// nothing is allocated while calls come and go.
///
/// The thread that goes to sleep in a plan says how many bytes of that plan it waits for: calls of
/// this plan are quiet, which means that they wake nobody, until they make as many bytes.
///
/// A Batch has a list `operations`.
template <class Batch, class Sync = Threads>
class HandOverOf {
 public:
  using Lock = std::lock_guard<typename Sync::Mutex>;
  Lock lock() const { return Lock(mutex_); }

  // --- the program's threads ---
  /// The holder of the token will take this next.
  Batch& offered(const Lock&) {
    Sync::writes(&offered_);
    return offered_;
  }
  /// The number of an operation that is put down now: 1 for the first.
  uint64_t number(const Lock&) { return ++numbered_; }
  /// These bytes were put down. `fits`: they belong to this plan, and are as it says.
  void count(const Lock&, int64_t bytes, uint32_t plan, bool fits) {
    Sync::writes(&quiet_bytes_);
    offered_bytes_ += bytes;
    if (plan != quiet_plan_ || !fits) quiet_bytes_ = 0;
  }
  /// Whether what was put down must wake the thread that sleeps.
  bool must_ring(const Lock&) const {
    Sync::reads(&quiet_bytes_);
    return offered_bytes_ >= quiet_bytes_;
  }

  // --- the door: any thread looks at it; it moves under the lock, so that nothing enters once it
  // is shut ---
  Door door() const { return door_.load(); }
  bool lets_in() const { return tutti::lets_in(door()); }
  void move_door(const Lock&, Door to) { door_ = to; }
  /// Needs no lock: it is called where not even an error could be made.
  void break_door() { door_ = Door::broken; }
  /// The program closes its communicator. False: it had done so before.
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

  // --- the holder of the token ---
  /// All that was put down since the last call. The caller empties it before the next one. From
  /// here on every call wakes the engine.
  Batch& take() {
    const Lock lock(mutex_);
    Sync::writes(&offered_);
    Sync::writes(&quiet_bytes_);
    Sync::writes(&taken_);
    std::swap(offered_, taken_);
    offered_bytes_ = quiet_bytes_ = 0;
    return taken_;
  }
  /// The caller is about to sleep until `bytes` of this plan were put down; 0: until anything was.
  /// False: something was put down after take(), and the caller does not sleep.
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
  mutable typename Sync::Mutex mutex_;  // guards the following
  Batch offered_;
  // While a thread sleeps in a plan: what is put down need not wake it before it makes as many
  // bytes of that plan. 0: all of it does.
  int64_t quiet_bytes_ = 0;
  uint32_t quiet_plan_ = 0;
  int64_t offered_bytes_ = 0;
  uint64_t numbered_ = 0;
  bool is_closed_ = false;

  Batch taken_;  // the holder of the token alone touches it
};

}  // namespace tutti
