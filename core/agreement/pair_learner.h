#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "tutti/core/agreement/request.h"

namespace tutti {

/// The ids of pairs are below this limit; see pair_tag().
inline constexpr int64_t kMostPairs = int64_t{1} << 20;

/// Returns the tag of one use of a pair. It is equal on the pair's two ranks, and differs from the
/// tags of all plans.
inline uint64_t pair_tag(int64_t pair, uint64_t use) {
  constexpr int kUseBits = 40;
  constexpr uint64_t kMostUses = uint64_t{1} << kUseBits;
  return (uint64_t{1} << 62) | (static_cast<uint64_t>(pair) << kUseBits) | (use % kMostUses);
}
/// Returns the greatest tag that a use of the pair can have.
inline uint64_t last_pair_tag(int64_t pair) { return pair_tag(pair, ~uint64_t{0}); }

/// Watches the coordinator's answers to sends and receives. If one rank has sent to another
/// `equal_uses` times with the same name, dtype and count, the two become a prepared pair. From
/// then on they send and receive under this name without asking rank 0. If a rank uses the name
/// differently, it leaves the pair and asks rank 0 again. Its peer does the same when it learns of
/// that. The next pair of this name needs twice as many equal uses. Pure.
class PairLearner {
 public:
  static constexpr size_t kMostNames = 1 << 16;
  explicit PairLearner(int equal_uses) : equal_uses_(equal_uses) {}

  /// Returns the id of the new pair if this answer makes its two ranks a pair, else -1. The answer
  /// must not be an error.
  int64_t observe(const Response& response);
  /// Returns the number of names in the table, at most kMostNames.
  size_t kept_names() const { return known_.size(); }

 private:
  // One use of a name: sender, receiver, dtype and number of elements.
  struct Use {
    int64_t from = -1, to = -1;
    DataType dtype = DataType::f32;
    int64_t count = 0;
    bool operator==(const Use&) const = default;
  };
  struct Known {
    Use use;
    int equal = 0;
    int needed = 0;
    bool is_pair = false;  // the ranks have not asked rank 0 since they became a pair
  };

  const int equal_uses_;
  int64_t next_ = 0;
  std::unordered_map<std::string, Known> known_;
};

}  // namespace tutti
