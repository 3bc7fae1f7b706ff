#pragma once

namespace tutti {

/// Who may be the engine: at most one holder; threads that wait for their Work come before the
/// background thread. Pure bookkeeping of one protocol; the caller holds one mutex around every
/// call and does the waking that the answers ask for. Its promise: whenever nobody holds the token,
/// somebody who can take it is awake or about to be woken.
class Token {
 public:
  enum class Wake { nobody, a_driver, the_background };

  bool held() const { return held_; }
  int waiting_drivers() const { return waiting_drivers_; }

  /// True: the caller is the engine now.
  bool take() {
    if (held_) return false;
    return held_ = true;
  }
  /// The background thread takes it only if nobody waits for it.
  bool take_in_background() { return waiting_drivers_ == 0 && take(); }
  void put_back() { held_ = false; }

  /// A driver that did not get it goes to sleep; returns from sleep.
  void driver_sleeps() { ++waiting_drivers_; }
  void driver_wakes() { --waiting_drivers_; }
  /// The background thread sleeps because somebody else drives.
  void background_parks() { parked_ = true; }
  void background_unparks() { parked_ = false; }

  /// Whom a thread that is done with the token, or with waiting for it, must wake.
  Wake next() const {
    if (held_) return Wake::nobody;
    if (waiting_drivers_ > 0) return Wake::a_driver;
    return parked_ ? Wake::the_background : Wake::nobody;
  }

 private:
  bool held_ = false;
  bool parked_ = false;
  int waiting_drivers_ = 0;
};

}  // namespace tutti
