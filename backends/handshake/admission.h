#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "tutti/base/deadline.h"
#include "tutti/base/log.h"

namespace tutti {

/// A connection that has arrived at a door and has not proved itself yet.
class Stranger {
 public:
  virtual ~Stranger() = default;
  /// Returns its name for the log: "the connection from 10.0.0.3:4711".
  virtual const std::string& name() const = 0;
  /// Returns whether anything came from it, read or not.
  virtual bool has_spoken() = 0;
  /// Closes the connection; its owner gets no result of it any more.
  virtual void dismiss() = 0;
};

/// Returns whether bytes have arrived at this socket that were not read yet.
bool has_input(int descriptor);

/// Limits which connections may wait at a door (the store's port, a rank's TCP port, a rank's Unix
/// socket) until they have proved themselves. At most kMostStrangers wait at once, so that
/// connections which never prove themselves cannot keep a job from starting. A connection that
/// arrives at a full door takes the slot of the one that has been silent for longest, or else of
/// the oldest one. Every connection keeps its slot for at least kLeastStay.
///
/// It counts the connections that were turned away and logs them: the first at once, then one line
/// per kBetweenLines while more come, and the rest at the end. One thread at a time; the caller
/// passes in the time.
class Admission {
 public:
  static constexpr size_t kMostStrangers = 256;
  /// A genuine caller sends at once, so it is seldom dismissed. A flood of connections is accepted
  /// at a rate of at most 5,000 a second.
  static constexpr std::chrono::milliseconds kLeastStay{50};
  static constexpr std::chrono::seconds kBetweenLines{10};

  /// `door` names the door in the log: "rank 3 at 10.0.0.3:4711". `log` may be empty.
  Admission(std::string door, LogSink log);
  ~Admission();
  Admission(const Admission&) = delete;

  /// Returns when the next stranger may enter. Until then further ones wait in the kernel's queue.
  Clock::time_point next_opening(Clock::time_point now) const;
  /// Admits the stranger that `make` returns; `make` receives the number of its slot (`place`).
  /// Dismisses another stranger if the door is full. Must not be called before next_opening(). The
  /// caller owns the stranger.
  void enter(const std::function<std::weak_ptr<Stranger>(uint64_t place)>& make,
             Clock::time_point now);
  /// Dismisses a stranger if one has had kLeastStay; for a process that has run out of descriptors.
  bool make_room(Clock::time_point now);
  /// Frees the slot of a stranger that has proved itself or was turned away by the caller.
  void leave(uint64_t place);

  enum class Reason : uint8_t { silent, unproved, other_user };
  /// Counts a connection that was turned away. `what` says which one, and why: "the connection from
  /// 10.0.0.3:4711 is not a Tutti process".
  void turned_away(Reason reason, std::string_view what, Clock::time_point now);
  /// Logs now what was counted since the last line.
  void tell(Clock::time_point now);

 private:
  struct Entry {
    uint64_t place;
    std::weak_ptr<Stranger> stranger;
    Clock::time_point since;
    bool spoken = false;
  };

  void dismiss_one(Clock::time_point now);

  const std::string door_;
  const LogSink log_;
  std::list<Entry> entries_;  // oldest first
  uint64_t last_place_ = 0;
  // Counted since the last line in the log.
  std::array<uint64_t, 3> counts_{};
  std::string last_;
  Clock::time_point first_seen_;
  Clock::time_point next_line_ = Clock::time_point::min();
};

}  // namespace tutti
