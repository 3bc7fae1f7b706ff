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

/// If the operation joins the ranks' parts, returns the number of elements of all parts together;
/// `rows` has the rows of each rank. Otherwise returns 0.
int64_t gathered(const Signature& signature, const std::vector<int64_t>& rows);

/// A step that all ranks agreed to replay: its tensors and their buckets, in launch order. Every
/// rank builds it from the same description, so it is equal on all ranks. An operation that cannot
/// share a bucket has its own bucket, and all earlier tensors are launched before it.
struct Plan {
  struct Tensor {
    std::string name;
    Signature signature;
    bool cut = false;                 // may not share a bucket with tensors before it
    std::vector<int64_t> rows = {};   // the rows of its Response; empty for an allreduce
    std::vector<int64_t> given = {};  // if parts are exchanged: rows sent to each rank; see
                                      // told_to()

    /// Returns the answer with which the tensor was negotiated.
    Response answer() const;
    /// Returns whether this request from rank `rank` would get the same answer as the plan's
    /// tensor.
    bool fits(const Request& request, int rank, int size) const;
  };
  uint32_t id = 0;
  std::vector<Tensor> tensors;
  std::vector<Bucket> buckets;
  std::unordered_map<std::string, int64_t> index;
  std::unordered_map<std::string, std::vector<int64_t>> groups;  // members of each group

  static Plan build(uint32_t id, std::vector<Tensor> tensors, int64_t fusion_bytes,
                    int64_t partition_bytes);
  /// Returns the plan in the form in which the coordinator sends it to `rank`. If parts are
  /// exchanged, it has only that rank's own rows.
  Plan told_to(int rank, int size) const;
  /// Returns whether the ranks receive different forms of the plan; see told_to().
  bool differs_by_rank() const;
  void encode(WireWriter& writer) const;
  static Plan decode(WireReader& reader, int64_t fusion_bytes, int64_t partition_bytes);

  /// Returns the tag of the bucket that is launched as number `sequence` since the plan began. The
  /// next tag is reserved for a second operation of the same bucket.
  uint64_t tag(uint64_t sequence) const { return (uint64_t{id} << kSequenceBits) | (2 * sequence); }
  uint64_t last_tag() const { return ((uint64_t{id} + 1) << kSequenceBits) - 1; }
  static constexpr int kSequenceBits = 40;
};

/// Watches the coordinator's answers. When the same step has occurred `equal_steps` times, it
/// proposes a plan. After a plan failed, it requires twice as many equal steps, and each tensor
/// that was missing starts a new bucket. A step of more than kMostTensors never becomes a plan,
/// because names that never repeat look like one endless step. Pure.
class PlanLearner {
 public:
  static constexpr size_t kMostTensors = 1 << 16;
  explicit PlanLearner(int equal_steps) : equal_steps_(equal_steps), needed_(equal_steps) {}

  /// Returns whether a plan can contain the operation. It can if all ranks take part in the
  /// operation and each rank knows from its own request and the plan what it receives.
  static bool can_replay(const Signature& signature);
  /// Takes a successful answer of rank 0, given while no rank has joined. If it completes a step
  /// that has now repeated often enough, returns the step's tensors as the plan.
  std::optional<std::vector<Plan::Tensor>> observe(const Response& response);
  /// Reports an error or a join, which makes the current step irregular.
  void disturb();
  /// Reports that the ranks gave up the plan because the order of its tensors changed.
  void reordered() { disturb(); }
  /// Reports that the ranks gave up the plan because the tensors `missing` were not submitted.
  void failed(const std::vector<std::string>& missing);
  /// Returns the number of names in all tables. It is at most 2 * kMostTensors for steps and
  /// kMostTensors for tensors that start a bucket.
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
