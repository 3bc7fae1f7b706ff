#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/collectives/transport.h"
#include "tutti/core/agreement/farewell.h"

namespace tutti {

/// A rank that closed, and how far it got.
struct Departure {
  int rank;
  Farewell farewell;
  Error error;      // for operations that need more of that rank
  std::string why;  // the error that made it close; empty: none is known
};

/// Knows the state of each other rank, and who left first. Pure.
///
///   here --farewell--> leaving --its link ends--> left
///    |  \--its link says goodbye----------------> left
///    +-----its link ends otherwise--------------> lost
class Peers {
 public:
  enum class State : uint8_t { here, leaving, left, lost };
  explicit Peers(int size) : states_(static_cast<size_t>(size), State::here) {}

  /// Returns false if that rank has departed already; nothing changes then.
  bool on_farewell(Departure departure);
  /// Returns the new state, or `here` if the link's end was known before.
  State on_end(int rank, PeerEvent::Kind kind);

  State state(int rank) const { return states_[static_cast<size_t>(rank)]; }
  /// Returns whether its link has ended, so nothing reaches it any more.
  bool is_gone(int rank) const { return state(rank) == State::left || state(rank) == State::lost; }
  /// Returns the departures in the order in which their farewells arrived.
  const std::vector<Departure>& departures() const { return departures_; }
  /// Returns the first departure, or null if no rank has left.
  const Departure* first() const { return departures_.empty() ? nullptr : &departures_.front(); }
  const Departure* departure_of(int rank) const;
  /// Returns the first departure of a rank that had not finished this blocking call of all ranks,
  /// or null.
  const Departure* departure_before_blocking(uint64_t call) const;

 private:
  std::vector<State> states_;
  std::vector<Departure> departures_;
};

}  // namespace tutti
