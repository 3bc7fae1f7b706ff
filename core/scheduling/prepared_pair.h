#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "tutti/core/agreement/farewell.h"
#include "tutti/core/agreement/pair_learner.h"
#include "tutti/core/scheduling/run.h"

namespace tutti {

/// One rank's end of a pair that sends and receives without asking; see PairLearner.
struct PreparedPair {
  std::string key;  // of its entries
  int64_t id = -1;
  int peer = -1;
  bool sends = false;
  DataType dtype = DataType::f32;
  int64_t count = 0;
  uint64_t next_use = 0;  // that this rank will launch
  // The first use that either rank will ask for instead.
  uint64_t over_from = std::numeric_limits<uint64_t>::max();
  // The peer has left the pair from this use on. The use before may still run there.
  std::optional<uint64_t> left_by_peer;
  Run* running = nullptr;     // of use next_use - 1
  std::unique_ptr<Run> idle;  // kept for the next use

  bool fits(const Signature& signature) const {
    return (signature.kind == CollectiveKind::send) == sends && signature.dtype == dtype &&
           signature.shape.count() == count && signature.placement == DeviceKind::cpu;
  }
  /// Whether the peer, which said this farewell, has finished the use. A pair is in the farewell as
  /// long as a use of it runs there. Before a rank forgets a pair it says how many uses it
  /// finished.
  bool peer_finished(uint64_t use, const Farewell& farewell) const {
    return use < farewell.uses_of(id).value_or(left_by_peer.value_or(0));
  }
  /// Uses that are finished here.
  uint64_t finished() const { return next_use - (running != nullptr ? 1 : 0); }
};

}  // namespace tutti
