#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "tutti/base/sync.h"
#include "tutti/core/threads/door.h"

namespace tutti {

/// The program's threads put down here what they want done, and the holder of the token takes it
/// from here. The lock also guards other data that those threads share. Two batches are swapped, so
/// nothing is allocated in steady use.
///
/// A thread that goes to sleep during a plan states how many bytes of that plan it waits for. Calls
/// of this plan are quiet, which means that they wake nobody, until they add up to that many bytes.
///
/// A Batch has a list `operations`.
template <class Batch, class Sync = Threads>
class HandOverOf {
 public:
  using Lock = std::lock_guard<typename Sync::Mutex>;
  Lock lock() const { return Lock(mutex_); }

  // --- the program's threads ---
  /// Returns the batch that the holder of the token takes next.
  Batch& offered(const Lock&) {
    Sync::writes(&offered_);
    return offered_;
  }
  /// Returns the number of an operation that is put down now; the first one gets 1.
  uint64_t number(const Lock&) { return ++numbered_; }
  /// Counts `bytes` that were put down. `fits`: the call belongs to `plan` and is as planned.
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

  // --- the door: any thread looks at it; it moves under the lock, so that no call enters once it
  // is shut ---
  Door door() const { return door_.load(); }
  bool lets_in() const { return tutti::lets_in(door()); }
  void move_door(const Lock&, Door to) { door_ = to; }
  /// Takes no lock, because it is called after even making an error has failed.
  void break_door() { door_ = Door::broken; }
  /// Called when the program closes its communicator. Returns false if it had done so before.
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
  /// Returns all that was put down since the last call. The caller empties it before the next call.
  /// From here on every call of the program wakes the engine.
  Batch& take() {
    const Lock lock(mutex_);
    Sync::writes(&offered_);
    Sync::writes(&quiet_bytes_);
    Sync::writes(&taken_);
    std::swap(offered_, taken_);
    offered_bytes_ = quiet_bytes_ = 0;
    return taken_;
  }
  /// Called before a sleep that shall last until `bytes` of this plan were put down, or, if `bytes`
  /// is 0, until anything was. Returns false if something was put down after take(); the caller
  /// must not sleep then.
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
  // While a thread sleeps during a plan, calls need not wake it before they add up to this many
  // bytes of that plan. 0: every call wakes it.
  int64_t quiet_bytes_ = 0;
  uint32_t quiet_plan_ = 0;
  int64_t offered_bytes_ = 0;
  uint64_t numbered_ = 0;
  bool is_closed_ = false;

  Batch taken_;  // the holder of the token alone touches it
};

}  // namespace tutti
