#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tutti/core/agreement/bucket.h"
#include "tutti/core/agreement/request.h"

namespace tutti {

/// Returns the elements of all ranks together if the operation joins their parts and these are
/// their rows, else 0.
int64_t gathered(const Signature& signature, const std::vector<int64_t>& rows);

/// A step that all ranks agreed to replay: its tensors and their buckets, in launch order. Every
/// rank builds it from the same description, so it is equal everywhere. An operation of a kind that
/// cannot share a bucket has its own bucket, and everything before it is launched before it.
struct Plan {
  struct Tensor {
    std::string name;
    Signature signature;
    bool cut = false;                 // may not share a bucket with tensors before it
    std::vector<int64_t> rows = {};   // as in its Response; empty for an allreduce
    std::vector<int64_t> given = {};  // if parts are exchanged: to each rank; see told_to()

    /// Returns the answer that it got when it was negotiated.
    Response answer() const;
    /// Returns whether this request of rank `rank` would get the same answer.
    bool fits(const Request& request, int rank, int size) const;
  };
  uint32_t id = 0;
  std::vector<Tensor> tensors;
  std::vector<Bucket> buckets;
  std::unordered_map<std::string, int64_t> index;
  std::unordered_map<std::string, std::vector<int64_t>> groups;  // members of each group

  static Plan build(uint32_t id, std::vector<Tensor> tensors, int64_t fusion_bytes,
                    int64_t partition_bytes);
  /// Returns the plan as the coordinator sends it to `rank`. If parts are exchanged, it has only
  /// the rank's own rows.
  Plan told_to(int rank, int size) const;
  /// Returns whether told_to() differs from rank to rank.
  bool differs_by_rank() const;
  void encode(WireWriter& writer) const;
  static Plan decode(WireReader& reader, int64_t fusion_bytes, int64_t partition_bytes);

  /// Returns the operation number of the bucket that is launched as number `sequence` since the
  /// plan began. The next number is reserved for a second operation of the same bucket.
  uint64_t tag(uint64_t sequence) const { return (uint64_t{id} << kSequenceBits) | (2 * sequence); }
  uint64_t last_tag() const { return ((uint64_t{id} + 1) << kSequenceBits) - 1; }
  static constexpr int kSequenceBits = 40;
};

/// Watches the coordinator's answers. When the same step has come `equal_steps` times, it proposes
/// a plan. After a plan failed it requires twice as many steps, and each tensor that was missing
/// then starts a new bucket. A step of more than kMostTensors never becomes a plan: names that do
/// not repeat look like a step without end. Pure.
class PlanLearner {
 public:
  static constexpr size_t kMostTensors = 1 << 16;
  explicit PlanLearner(int equal_steps) : equal_steps_(equal_steps), needed_(equal_steps) {}

  /// Returns whether a plan can hold the operation. All ranks must take part in it, and each must
  /// know from its own request and the plan what it receives.
  static bool can_replay(const Signature& signature);
  /// Takes a successful answer of rank 0; no rank may have joined. If the answer completes a
  /// step that has now repeated often enough, returns that step's tensors as the plan.
  std::optional<std::vector<Plan::Tensor>> observe(const Response& response);
  /// Reports something that makes the step irregular: an error or a join.
  void disturb();
  /// Reports that the plan was given up because the order of its tensors changed.
  void reordered() { disturb(); }
  /// Reports that the plan was given up because the tensors `missing` did not come.
  void failed(const std::vector<std::string>& missing);
  /// Returns how many names it keeps: at most 2 * kMostTensors of steps, and kMostTensors that
  /// start a bucket.
  size_t kept_names() const { return step_.size() + last_.size() + cuts_.size(); }

 private:
  bool same_as_last() const;

  const int equal_steps_;
  int needed_;
  int equal_ = 0;
  std::vector<Plan::Tensor> step_;
  std::unordered_map<std::string, size_t> in_step_;
  std::unordered_map<std::string, std::pair<Signature, std::vector<int64_t>>> last_;
  std::unordered_set<std::string> cuts_;
};

}  // namespace tutti
