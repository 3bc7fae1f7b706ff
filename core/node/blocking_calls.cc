#include "tutti/core/node/blocking_calls.h"

#include <algorithm>

namespace tutti {

bool BlockingCalls::needs(int rank) const {
  return is_waiting() && is_of_two_ && std::ranges::count(peers_, rank) > 0;
}

const Departure* BlockingCalls::departure_that_ends(const Peers& peers) const {
  // If a rank gave up a call, it has finished all earlier ones, so those complete on this rank too.
  // Sends and receives are ended separately, see PairCalls.
  return is_of_two_ ? nullptr : peers.departure_before_blocking(begun_);
}

}  // namespace tutti
