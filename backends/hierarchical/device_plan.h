#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tutti/collectives/collective.h"

namespace tutti {

/// The ranks of every host, and this rank's position among them. All hosts have the same number of
/// ranks.
struct LevelsGrid {
  std::vector<std::vector<int>> ranks;
  int host = 0;    // index into `ranks`
  int number = 0;  // index into `ranks[host]`

  int rank() const { return of(host); }
  /// Returns the rank on host `which` that has this rank's number.
  int of(int which) const { return ranks[static_cast<size_t>(which)][static_cast<size_t>(number)]; }
  /// Returns whether the ranks of every host are consecutive.
  bool is_in_blocks() const;
};

/// The calls and copies of one rank in a collective over two levels. Offsets and counts are in
/// elements. The calls of a list run one after another. The ranks of a host make the calls of
/// `before` and `after` together, on device memory. The ranks that have the same number on their
/// hosts make the call `cross` together, on pinned memory.
struct LevelsPlan {
  enum class Memory { input, output, scratch, pinned };
  struct Spot {
    Memory memory;
    int64_t at = 0;
  };
  struct Call {
    CollectiveKind kind;
    Spot input, output;
    std::vector<int64_t> counts;
    int root = 0;
  };
  struct Copy {
    Spot device;
    int64_t pinned = 0;
    int64_t count = 0;
  };
  std::vector<Call> before;
  std::vector<Copy> fetch;  // from the device to pinned memory
  std::optional<Call> cross;
  std::vector<Copy> put;  // from pinned memory to the device
  std::vector<Call> after;
  int64_t scratch = 0, pinned = 0;  // elements that these memories must hold
  int64_t reduced = 0;              // elements of the output that are sums and must be scaled
};

/// Returns the plan of an allreduce or a broadcast. If the grid is in blocks, the collective may
/// also be an allgather or a reduce_scatter. Every rank of a host moves its own share between the
/// hosts, and no other data crosses. A pure function.
LevelsPlan plan_levels(const Collective& collective, const LevelsGrid& grid);

}  // namespace tutti
