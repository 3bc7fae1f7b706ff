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

/// A connection that has come to a door and has not proved itself yet.
class Stranger {
 public:
  virtual ~Stranger() = default;
  /// For people: "the connection from 10.0.0.3:4711".
  virtual const std::string& name() const = 0;
  /// Whether anything came from it, read or not.
  virtual bool has_spoken() = 0;
  /// Closes the connection; nothing more is heard of it.
  virtual void dismiss() = 0;
};

/// Whether something came over this socket that was not read yet.
bool has_input(int descriptor);

/// Which connections may wait at a door (the store's port, a rank's TCP port, a rank's Unix socket)
/// until they have proved themselves, so that connections which never do cannot keep a job from
/// starting: kMostStrangers at once. A connection that comes to a full door takes the place of the
/// one that has been silent for longest, or else of the one that came first, once that one has had
/// kLeastStay.
///
/// Counts the connections that were turned away and says so in the log: the first at once, then a
/// line each kBetweenLines while they come, and the rest at the end. One thread at a time; time
/// comes in as a value.
class Admission {
 public:
  static constexpr size_t kMostStrangers = 256;
  /// A genuine caller speaks at once, so it is seldom dismissed; and a flood of connections is
  /// taken at 5,000 a second at most.
  static constexpr std::chrono::milliseconds kLeastStay{50};
  static constexpr std::chrono::seconds kBetweenLines{10};

  /// `door`: for the log, "rank 3 at 10.0.0.3:4711". `log` may be empty.
  Admission(std::string door, LogSink log);
  ~Admission();
  Admission(const Admission&) = delete;

  /// When the next stranger may enter: until then further ones wait in the kernel's queue.
  Clock::time_point next_opening(Clock::time_point now) const;
  /// Not before next_opening(). Dismisses a stranger if the door is full, and takes in the one that
  /// `make` returns, which is told the number of the place. The door's keeper keeps it alive.
  void enter(const std::function<std::weak_ptr<Stranger>(uint64_t place)>& make,
             Clock::time_point now);
  /// Dismisses a stranger if there is one to dismiss: when descriptors run out.
  bool make_room(Clock::time_point now);
  /// Its stranger has proved itself, or was turned away by the door.
  void leave(uint64_t place);

  enum class Reason : uint8_t { silent, unproved, other_user };
  /// `what` says which connection, and why: "the connection from 10.0.0.3:4711 is not a Tutti
  /// process".
  void turned_away(Reason reason, std::string_view what, Clock::time_point now);
  /// Says now what is left to say.
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
  // Since the last line in the log.
  std::array<uint64_t, 3> counts_{};
  std::string last_;
  Clock::time_point first_seen_;
  Clock::time_point next_line_ = Clock::time_point::min();
};

}  // namespace tutti
