#include "tutti/core/scheduling/peers.h"

#include <algorithm>

namespace tutti {

bool Peers::on_farewell(Departure departure) {
  if (departure_of(departure.rank) != nullptr) return false;
  auto& state = states_[static_cast<size_t>(departure.rank)];
  if (state == State::here) state = State::leaving;
  departures_.push_back(std::move(departure));
  return true;
}

Peers::State Peers::on_end(int rank, PeerEvent::Kind kind) {
  auto& state = states_[static_cast<size_t>(rank)];
  if (is_gone(rank)) return State::here;
  const bool was_announced = state == State::leaving || kind == PeerEvent::Kind::left;
  return state = was_announced ? State::left : State::lost;
}

const Departure* Peers::departure_of(int rank) const {
  const auto found = std::ranges::find(departures_, rank, &Departure::rank);
  return found == departures_.end() ? nullptr : &*found;
}

const Departure* Peers::departure_before_blocking(uint64_t call) const {
  const auto found = std::ranges::find_if(departures_, [&](const Departure& departure) {
    return !departure.farewell.has_finished_blocking(call);
  });
  return found == departures_.end() ? nullptr : &*found;
}

}  // namespace tutti
