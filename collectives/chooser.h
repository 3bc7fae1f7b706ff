#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/collectives/collective.h"
#include "tutti/collectives/schedule.h"
#include "tutti/collectives/thresholds.h"

namespace tutti {

/// The inputs to the choice of an algorithm.
struct Question {
  CollectiveKind kind = CollectiveKind::allreduce;
  int64_t bytes = 0;
  int size = 1;
  int hosts = 1;
  Determinism determinism = Determinism::fastest;
  Sums sums = Sums::plain;
};

/// Returns the size in bytes by which all ranks choose the same algorithm for a collective. It is 0
/// if parts are exchanged, because the counts then differ from rank to rank.
int64_t agreed_bytes(const Collective& collective);

/// One part of a score string: the backend and algorithm that run the collectives of a kind with a
/// size in bytes in [low, high).
struct Score {
  CollectiveKind kind;
  int64_t low, high;
  std::string backend;         // empty for the communicator's own backend
  const Algorithm* algorithm;  // null ("auto") for the built-in choice
  std::string text;            // the part as the user wrote it
};

/// A table from {kind, bytes, ranks, hosts} to an algorithm, with overrides by a score string:
///   allreduce:0-32k=one_shot,32k-inf=ring;broadcast:0-inf=binomial_tree
/// Sizes take K, M, G or inf. A range includes its low end but not its high end. Later scores win.
/// A score for send also applies to recv, and the reverse. A collective keeps the built-in choice
/// if no score names it, or if the score's algorithm does not support its Sums. An override that
/// breaks determinism=rank_order is rejected. A score may also name a backend (ucx/ring, ucx/auto);
/// the Chooser ignores the backend, and backends/choice uses it.
class Chooser {
 public:
  Chooser() = default;
  /// Throws Error(invalid_argument) that quotes the invalid part and what was expected.
  explicit Chooser(std::string_view scores, Determinism determinism = Determinism::fastest,
                   Thresholds thresholds = {});
  /// Returns the algorithm. Throws Error(invalid_argument) if the question asks for rank_order and
  /// an override breaks that.
  const Algorithm& choose(const Question& question) const;
  std::span<const Score> scores() const { return scores_; }
  /// Returns the score that applies to this kind and size, or null if there is none.
  const Score* find(CollectiveKind kind, int64_t bytes) const;
  /// Returns whether a score names an algorithm for some collectives of this kind.
  bool overrides(CollectiveKind kind) const;

 private:
  std::vector<Score> scores_;
  Thresholds thresholds_;
};

}  // namespace tutti
