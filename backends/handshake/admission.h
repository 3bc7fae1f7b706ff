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

/// A connection that has not proved itself yet.
class Stranger {
 public:
  virtual ~Stranger() = default;
  /// Returns the name of the connection for the log: "the connection from 10.0.0.3:4711".
  virtual const std::string& name() const = 0;
  /// Returns whether any byte has arrived on the connection, read or not.
  virtual bool has_spoken() = 0;
  /// Closes the connection. Its owner is not called back about it any more.
  virtual void dismiss() = 0;
};

/// Returns whether unread bytes have arrived at this socket.
bool has_input(int descriptor);

/// Limits the connections that wait at a door until they have proved themselves. A door is the
/// store's port, a rank's TCP port or a rank's Unix socket. At most kMostStrangers wait at a time.
/// This limit keeps connections that never prove themselves from blocking the start of a job.
///
/// A connection that arrives at a full door takes the slot of another one: the oldest that has sent
/// nothing, or else the oldest of all. Every connection keeps its slot for at least kLeastStay.
///
/// The class counts and logs the connections that were turned away. It logs the first one
/// immediately, then one line per kBetweenLines while more come, and the rest at the end. One
/// thread at a time uses it. The caller passes in the current time.
class Admission {
 public:
  static constexpr size_t kMostStrangers = 256;
  /// The shortest time for which a stranger keeps its slot. A rank of the job sends its first bytes
  /// sooner than that, so it is seldom dismissed. With this value at most about 5,000 connections
  /// per second are accepted.
  static constexpr std::chrono::milliseconds kLeastStay{50};
  static constexpr std::chrono::seconds kBetweenLines{10};

  /// `door` names the door in the log: "rank 3 at 10.0.0.3:4711". `log` may be empty.
  Admission(std::string door, LogSink log);
  ~Admission();
  Admission(const Admission&) = delete;

  /// Returns the time at which the next stranger may enter. Until then others wait in the kernel's
  /// queue.
  Clock::time_point next_opening(Clock::time_point now) const;
  /// Admits the stranger that `make` returns. `make` receives the number of the stranger's slot
  /// (`place`). If the door is full, another stranger is dismissed. Must not be called before
  /// next_opening(). The caller owns the stranger.
  void enter(const std::function<std::weak_ptr<Stranger>(uint64_t place)>& make,
             Clock::time_point now);
  /// Dismisses a stranger that has stayed for kLeastStay, and returns whether there was one. Called
  /// when the process has run out of descriptors.
  bool make_room(Clock::time_point now);
  /// Frees the slot of a stranger that has proved itself or that the caller has turned away.
  void leave(uint64_t place);

  enum class Reason : uint8_t { silent, unproved, other_user };
  /// Counts a connection that was turned away. `what` says which connection and why: "the
  /// connection from 10.0.0.3:4711 is not a Tutti process".
  void turned_away(Reason reason, std::string_view what, Clock::time_point now);
  /// Logs the connections that were counted since the last line.
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
  // Connections turned away since the last line in the log, by Reason.
  std::array<uint64_t, 3> counts_{};
  std::string last_;
  Clock::time_point first_seen_;
  Clock::time_point next_line_ = Clock::time_point::min();
};

}  // namespace tutti
