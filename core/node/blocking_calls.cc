#include "tutti/core/node/blocking_calls.h"

#include <algorithm>

namespace tutti {

bool BlockingCalls::needs(int rank) const {
  return is_waiting() && is_of_two_ && std::ranges::count(peers_, rank) > 0;
}

const Departure* BlockingCalls::departure_that_ends(const Peers& peers) const {
  // Ranks that left have finished the calls before the one that they gave up; those end here too.
  // Each send and receive ends by itself: see PairCalls.
  return is_of_two_ ? nullptr : peers.departure_before_blocking(begun_);
}

}  // namespace tutti
