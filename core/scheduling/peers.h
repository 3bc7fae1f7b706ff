#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/collectives/transport.h"
#include "tutti/core/agreement/farewell.h"

namespace tutti {

/// A rank that has announced that it closes, and what it had finished.
struct Departure {
  int rank;
  Farewell farewell;
  Error error;      // for operations that still need that rank
  std::string why;  // the error because of which it closed; empty: none is known
};

/// Holds the state of each other rank, and which rank left first. Pure.
///
///   here --farewell--> leaving --its link ends--> left
///    |  \--its link says goodbye----------------> left
///    +-----its link ends otherwise--------------> lost
class Peers {
 public:
  enum class State : uint8_t { here, leaving, left, lost };
  explicit Peers(int size) : states_(static_cast<size_t>(size), State::here) {}

  /// Records a rank's farewell. Returns false and changes nothing if the rank had already departed.
  bool on_farewell(Departure departure);
  /// Records the end of a rank's link. Returns the new state, or `here` if this end was already
  /// known.
  State on_end(int rank, PeerEvent::Kind kind);

  State state(int rank) const { return states_[static_cast<size_t>(rank)]; }
  /// Returns whether the rank's link has ended, so that no message reaches it.
  bool is_gone(int rank) const { return state(rank) == State::left || state(rank) == State::lost; }
  /// Returns the departures in the order in which their farewells arrived.
  const std::vector<Departure>& departures() const { return departures_; }
  /// Returns the first departure, or null if no rank has left.
  const Departure* first() const { return departures_.empty() ? nullptr : &departures_.front(); }
  const Departure* departure_of(int rank) const;
  /// Returns the first departure of a rank that had not finished the collective blocking call
  /// number `call`. Returns null if there is none.
  const Departure* departure_before_blocking(uint64_t call) const;

 private:
  std::vector<State> states_;
  std::vector<Departure> departures_;
};

}  // namespace tutti
