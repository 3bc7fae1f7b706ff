#include "tutti/core/agreement/pair_learner.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {

int64_t PairLearner::observe(const Response& response) {
  const auto& signature = response.signature;
  if (signature.placement != DeviceKind::cpu || response.rows.size() != 2 ||
      signature.root == kFromAnyRank)
    return -1;
  const Use use{response.rows[0], response.rows[1], signature.dtype, signature.shape.count()};
  auto key = fmt::format("{}\n{}-{}", response.name, std::min(use.from, use.to),
                         std::max(use.from, use.to));
  auto found = known_.find(key);
  if (found == known_.end()) {
    // If the table is full, names that are not prepared pairs are dropped. Pairs stay, because
    // their two ranks keep them too.
    if (known_.size() >= kMostNames)
      std::erase_if(known_, [](const auto& known) { return !known.second.is_pair; });
    if (known_.size() >= kMostNames) return -1;
    found = known_.emplace(std::move(key), Known{use, 0, equal_uses_}).first;
  }
  auto& known = found->second;
  known.is_pair = false;
  known.equal = known.use == use ? known.equal + 1 : 1;
  known.use = use;
  if (known.equal < known.needed || next_ >= kMostPairs) return -1;
  constexpr int kMostNeeded = 1 << 16;
  known.needed = std::min(2 * known.needed, std::max(equal_uses_, kMostNeeded));
  known.equal = 0;
  known.is_pair = true;
  return next_++;
}

}  // namespace tutti
