#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/collectives/transport.h"
#include "tutti/core/agreement/farewell.h"

namespace tutti {

/// A rank that closed, and how far it went.
struct Departure {
  int rank;
  Farewell farewell;
  Error error;      // for what needs more of that rank
  std::string why;  // the error because of which it closed; empty: none is known
};

/// Knows what became of each other rank, and who left first. Pure.
///
///   here --farewell--> leaving --its link ends--> left
///    |  \--its link says goodbye----------------> left
///    +-----its link ends otherwise--------------> lost
class Peers {
 public:
  enum class State : uint8_t { here, leaving, left, lost };
  explicit Peers(int size) : states_(static_cast<size_t>(size), State::here) {}

  /// False: that rank has departed already, and nothing changes.
  bool on_farewell(Departure departure);
  /// The state that follows; `here` if the link's end was known before.
  State on_end(int rank, PeerEvent::Kind kind);

  State state(int rank) const { return states_[static_cast<size_t>(rank)]; }
  /// Whether its link has ended, so that nothing reaches it.
  bool is_gone(int rank) const { return state(rank) == State::left || state(rank) == State::lost; }
  /// In the order in which they were heard of.
  const std::vector<Departure>& departures() const { return departures_; }
  /// Null: no rank has left.
  const Departure* first() const { return departures_.empty() ? nullptr : &departures_.front(); }
  const Departure* departure_of(int rank) const;
  /// The first that left before it finished this blocking call of all ranks; null: none.
  const Departure* departure_before_blocking(uint64_t call) const;

 private:
  std::vector<State> states_;
  std::vector<Departure> departures_;
};

}  // namespace tutti
