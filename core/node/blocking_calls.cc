#include "tutti/core/node/blocking_calls.h"

#include <algorithm>

namespace tutti {

bool BlockingCalls::needs(int rank) const {
  return is_waiting() && is_of_two_ && std::ranges::count(peers_, rank) > 0;
}

const Departure* BlockingCalls::departure_that_ends(const Peers& peers) const {
  // A rank that left has finished the calls before the one that it gave up, so these complete here
  // too. Sends and receives end one by one, see PairCalls.
  return is_of_two_ ? nullptr : peers.departure_before_blocking(begun_);
}

}  // namespace tutti
