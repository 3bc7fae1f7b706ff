#include "tutti/core/node/blocking_calls.h"

#include <algorithm>

namespace tutti {

bool BlockingCalls::needs(int rank) const {
  return is_waiting() && is_of_two_ && std::ranges::count(peers_, rank) > 0;
}

const Departure* BlockingCalls::departure_that_ends(const Peers& peers) const {
  // Ranks that left have finished the calls before the one that they gave up; those end here too.
  if (!is_of_two_) return peers.departure_before_blocking(begun_);
  for (const int rank : peers_)
    if (const auto* departure = peers.departure_of(rank)) return departure;
  return nullptr;
}

}  // namespace tutti
