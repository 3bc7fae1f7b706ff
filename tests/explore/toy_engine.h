#pragma once

#include <gtest/gtest.h>

#include "tests/explore/expectations.h"
#include "tests/explore/explored.h"
#include "tests/explore/explorer.h"
#include "tutti/core/threads/turns.h"

namespace tutti::explore {

/// The policy Explored, in which the newest bell can be found. A peer rings it without the flag of
/// the WakeBell, as a message makes the engine's poller ready without the engine's own bell.
struct Polled : Explored {
  class Bell : public explore::Bell {
   public:
    Bell() { newest = this; }
    static inline Bell* newest = nullptr;
  };
};

/// Replaces the engine that Turns drives: it takes what has arrived. Its counter is plain data of
/// the token's holder, so that two holders at the same time are a race.
class ToyEngine {
 public:
  virtual ~ToyEngine() = default;

  // --- any thread ---
  TurnsOf<Polled> turns;
  /// Sends a message from a peer.
  void arrive() {
    ++arrived_;
    peers_->ring();
  }

  // --- by the holder of the token ---
  int taken() const {
    Explored::reads(&taken_);
    return taken_;
  }

  // --- the machine ---
  template <class Function>
  bool guarded(const Function& function) {
    function();
    return true;
  }
  virtual void begin() {}
  virtual bool step() {
    turns.bell().silence();
    if (!look()) return false;
    turns.wake_drivers();
    return true;
  }
  bool arm() { return arrived_ == taken(); }
  Clock::time_point wake_at() const { return Clock::time_point::max(); }
  virtual bool pending() const { return false; }
  bool can_go_on() const { return false; }
  virtual void publish() {}
  virtual bool be_quiet() { return true; }
  void rests() {}
  void sleep(Clock::time_point) {
    turns.bell().wait(std::chrono::microseconds::max());
    turns.bell().slept();
  }
  virtual void rest(Clock::time_point until) {
    if (arm() && !must_tell_of_close()) sleep(until);
  }

 protected:
  /// Part of a step. Returns true if something moved.
  virtual bool look() { return take_arrived(); }
  bool take_arrived() {
    const int arrived = arrived_;
    if (arrived == taken()) return false;
    Explored::writes(&taken_);
    taken_ = arrived;
    return true;
  }
  virtual bool must_tell_of_close() const { return false; }

 private:
  Polled::Bell* const peers_ = Polled::Bell::newest;  // the bell of `turns`
  Polled::Atomic<int> arrived_{0};
  int taken_ = 0;
};

inline constexpr auto kNever = Clock::time_point::max();

}  // namespace tutti::explore
