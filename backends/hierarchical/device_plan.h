#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tutti/collectives/collective.h"

namespace tutti {

/// The ranks of every host, all of which have equally many, and where this rank is among them.
struct LevelsGrid {
  std::vector<std::vector<int>> ranks;
  int host = 0;    // in `ranks`
  int number = 0;  // in `ranks[host]`

  int rank() const { return of(host); }
  /// The rank of this one's number on a host.
  int of(int which) const { return ranks[static_cast<size_t>(which)][static_cast<size_t>(number)]; }
  /// Whether the ranks of every host follow each other.
  bool is_in_blocks() const;
};

/// What a collective over two levels does, for one rank; positions and counts are in elements. The
/// calls of a list come one after another. Those of `before` and `after` are made by the ranks of a
/// host, `cross` by those of one number on their hosts, on pinned memory.
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
  std::vector<Copy> fetch;  // to pinned memory
  std::optional<Call> cross;
  std::vector<Copy> put;  // and back
  std::vector<Call> after;
  int64_t scratch = 0, pinned = 0;  // room for so many
  int64_t reduced = 0;              // so many elements of the output are sums, and to be scaled
};

/// For allreduce and broadcast; for allgather and reduce_scatter too if the grid is in blocks.
/// Every rank of a host drives its share between the hosts, which is all that crosses. Pure.
LevelsPlan plan_levels(const Collective& collective, const LevelsGrid& grid);

}  // namespace tutti
