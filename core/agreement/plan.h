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

/// Elements of all ranks together, if the operation joins their parts and these are their rows;
/// else 0.
int64_t gathered(const Signature& signature, const std::vector<int64_t>& rows);

/// A step that all ranks agreed to replay: its tensors and their buckets, in launch order. Built by
/// every rank from the same description, so equal everywhere. An operation of a kind that shares no
/// bucket has one of its own, and what is before it is launched before.
struct Plan {
  struct Tensor {
    std::string name;
    Signature signature;
    bool cut = false;                // may not share a bucket with what is before it
    std::vector<int64_t> rows = {};  // of an operation that is no allreduce: as in its Response
    // If parts are exchanged: the rows that this rank gives each rank, see told_to().
    std::vector<int64_t> given = {};

    /// What was answered when it was negotiated.
    Response answer() const;
    /// Whether this request would be answered so, as rank `rank`'s.
    bool fits(const Request& request, int rank, int size) const;
  };
  uint32_t id = 0;
  std::vector<Tensor> tensors;
  std::vector<Bucket> buckets;
  std::unordered_map<std::string, int64_t> index;
  std::unordered_map<std::string, std::vector<int64_t>> groups;  // members of each group

  static Plan build(uint32_t id, std::vector<Tensor> tensors, int64_t fusion_bytes,
                    int64_t partition_bytes);
  /// What `rank` is told of the coordinator's plan: its own rows, where parts are exchanged.
  Plan told_to(int rank, int size) const;
  /// Whether that differs from rank to rank.
  bool differs_by_rank() const;
  void encode(WireWriter& writer) const;
  static Plan decode(WireReader& reader, int64_t fusion_bytes, int64_t partition_bytes);

  /// The operation number of the bucket that is launched as number `sequence` since the plan began.
  /// The number behind it is free, for a second operation of the same bucket.
  uint64_t tag(uint64_t sequence) const { return (uint64_t{id} << kSequenceBits) | (2 * sequence); }
  uint64_t last_tag() const { return ((uint64_t{id} + 1) << kSequenceBits) - 1; }
  static constexpr int kSequenceBits = 40;
};

/// Watches the coordinator's answers until the same step came `equal_steps` times, then proposes a
/// plan. After a plan failed it is more careful: twice as many steps each time, and a tensor that
/// was missing when it failed begins a bucket of its own. A step of more than kMostTensors is never
/// one: names that never come again look like a step without end. Pure.
class PlanLearner {
 public:
  static constexpr size_t kMostTensors = 1 << 16;
  explicit PlanLearner(int equal_steps) : equal_steps_(equal_steps), needed_(equal_steps) {}

  /// Whether a plan can hold such an operation: all ranks take part in it, and each knows from its
  /// own request and the plan what it gets.
  static bool can_replay(const Signature& signature);
  /// What rank 0 answers without an error while no rank has joined. The tensors of the
  /// plan, if its step is now complete and came often enough.
  std::optional<std::vector<Plan::Tensor>> observe(const Response& response);
  /// Anything that makes the step irregular: errors, joins.
  void disturb();
  /// The plan was given up because the order of its tensors changed.
  void reordered() { disturb(); }
  /// The plan was given up; `missing` are the tensors that did not come.
  void failed(const std::vector<std::string>& missing);
  /// How many names it keeps: at most 2 * kMostTensors in steps and as many that cut.
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
