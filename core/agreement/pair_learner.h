#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "tutti/core/agreement/request.h"

namespace tutti {

/// The numbers of pairs are below this; see pair_tag().
inline constexpr int64_t kMostPairs = int64_t{1} << 20;

/// Returns the operation number of a pair's use. It is equal on the pair's two ranks, and differs
/// from the numbers of all plans.
inline uint64_t pair_tag(int64_t pair, uint64_t use) {
  constexpr int kUseBits = 40;
  constexpr uint64_t kMostUses = uint64_t{1} << kUseBits;
  return (uint64_t{1} << 62) | (static_cast<uint64_t>(pair) << kUseBits) | (use % kMostUses);
}
/// Returns the tag of the last use.
inline uint64_t last_pair_tag(int64_t pair) { return pair_tag(pair, ~uint64_t{0}); }

/// Watches the coordinator's answers to sends and receives. When one rank has sent to another under
/// one name `equal_uses` times with the same type and count, the two become a pair, which goes on
/// without asking. A rank that uses the name in another way leaves the pair and asks again. Its
/// peer does so too when it learns of that. The next pair then takes twice as many uses. Pure.
class PairLearner {
 public:
  static constexpr size_t kMostNames = 1 << 16;
  explicit PairLearner(int equal_uses) : equal_uses_(equal_uses) {}

  /// Returns the number of the pair if this answer makes its two ranks a pair, else -1. The answer
  /// must not be an error.
  int64_t observe(const Response& response);
  /// Returns how many names it keeps: at most kMostNames.
  size_t kept_names() const { return known_.size(); }

 private:
  // How two ranks use a name.
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
    bool is_pair = false;  // they have not asked since they became a pair
  };

  const int equal_uses_;
  int64_t next_ = 0;
  std::unordered_map<std::string, Known> known_;
};

}  // namespace tutti
