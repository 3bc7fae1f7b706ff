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

/// What the choice of an algorithm depends on.
struct Question {
  CollectiveKind kind = CollectiveKind::allreduce;
  int64_t bytes = 0;
  int size = 1;
  int hosts = 1;
  Determinism determinism = Determinism::fastest;
  Sums sums = Sums::plain;
};

/// The bytes of a collective as far as all ranks know them alike, so that they choose alike: counts
/// of an alltoall differ from rank to rank, so it has none here.
int64_t agreed_bytes(const Collective& collective);

/// One part of a score string: which backend and algorithm run the collectives of a kind whose
/// bytes are in [low, high).
struct Score {
  CollectiveKind kind;
  int64_t low, high;
  std::string backend;         // empty: the communicator's own
  const Algorithm* algorithm;  // null ("auto"): as if nothing were said
  std::string text;            // as it was given
};

/// One table from {kind, bytes, ranks, hosts} to an algorithm, with overrides by a score string:
///   allreduce:0-32k=one_shot,32k-inf=ring;broadcast:0-inf=binomial_tree
/// Sizes take K, M, G or inf; the low end belongs to the range, the high end does not. A
/// later score wins; one for send is one for recv too, and the other way round. Parts that no score
/// names keep the built-in choice. A collective also keeps it if the algorithm of the score does
/// not keep its sums, see Sums. Under determinism=rank_order an override that does not keep the
/// promise is refused. A score may name a backend too (ucx/ring, ucx/auto); here that decides
/// nothing, see backends/choice.
class Chooser {
 public:
  Chooser() = default;
  /// Throws Error(invalid_argument) that quotes the part it cannot read and what it wanted.
  explicit Chooser(std::string_view scores, Determinism determinism = Determinism::fastest,
                   Thresholds thresholds = {});
  /// Throws Error(invalid_argument) if the question asks for rank_order and an override breaks it.
  const Algorithm& choose(const Question& question) const;
  std::span<const Score> scores() const { return scores_; }
  /// The score that decides; null: none does.
  const Score* find(CollectiveKind kind, int64_t bytes) const;
  /// Whether some collectives of this kind run by an algorithm that a score names.
  bool overrides(CollectiveKind kind) const;

 private:
  std::vector<Score> scores_;
  Thresholds thresholds_;
};

}  // namespace tutti
