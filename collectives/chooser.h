#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/collectives/schedule.h"

namespace tutti {

enum class Determinism : uint8_t {
  fastest,    // the same bits on all ranks
  run,        // and from run to run: choices depend on nothing that varies
  rank_order  // and over backends, modes, bucket layouts and arrival orders
};

/// What the choice of an algorithm depends on.
struct Question {
  CollectiveKind kind = CollectiveKind::allreduce;
  int64_t bytes = 0;
  int size = 1;
  int hosts = 1;
  Determinism determinism = Determinism::fastest;
};

/// One table from {kind, bytes, ranks, hosts} to an algorithm, with overrides by a score string:
///   allreduce:0-32k=one_shot,32k-inf=ring;broadcast:0-inf=binomial_tree
/// Sizes take K, M, G or inf; the low end belongs to the range, the high end does not. A
/// later entry wins. Parts that no entry names keep the built-in choice; under
/// determinism=rank_order an override that does not keep the promise is refused.
class Chooser {
 public:
  Chooser() = default;
  /// Throws Error(invalid_argument) that quotes the part it cannot read and what it wanted.
  explicit Chooser(std::string_view scores, Determinism determinism = Determinism::fastest);
  /// Throws Error(invalid_argument) if the question asks for rank_order and an override breaks it.
  const Algorithm& choose(const Question& question) const;

 private:
  struct Entry {
    CollectiveKind kind;
    int64_t low, high;
    const Algorithm* algorithm;
  };
  std::vector<Entry> entries_;
};

}  // namespace tutti
