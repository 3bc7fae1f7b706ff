#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/agreement/plan.h"
#include "tutti/core/scheduling/entry.h"

namespace tutti {

/// One rank's side of a plan: which tensors of which step are here, and which bucket is next. Pure:
/// it decides what to launch and never waits. Buckets are launched strictly in order. A rank that
/// sees that the plan does not fit launches the next bucket with a veto, and then nothing more of
/// the plan. The cost of a tensor does not depend on the number of tensors.
class Replay {
 public:
  explicit Replay(Plan plan, int rank = 0, int size = 1);

  const Plan& plan() const { return plan_; }
  /// Takes a tensor of the plan. Returns false if the plan does not know it. A tensor that changed
  /// is taken too and makes deviates() true.
  bool offer(Entry* entry);
  bool deviates() const { return deviates_; }

  /// Returns whether all tensors of the next bucket, and all members of their groups, are here.
  bool ready() const { return !deviates_ && missing_[next_index_] == 0; }
  uint64_t next_sequence() const { return next_sequence_; }
  size_t next_index() const { return next_index_; }
  const Bucket& next_bucket() const { return plan_.buckets[next_index_]; }
  /// Lists the entries of the next bucket, one per slice. Requires ready().
  void entries_of_next(std::vector<Entry*>& entries) const;
  /// Called when the next bucket was launched with data.
  void launched();

  /// Returns the number of consecutive steps, all in the same order, in which a later bucket was
  /// complete before the next one.
  int inverted_steps() const { return inverted_steps_; }

  /// Returns the names of the tensors that the next bucket lacks.
  std::vector<std::string> missing() const;
  bool lacks_some() const { return missing_[next_index_] > 0; }
  /// Returns how many bytes the next bucket lacks, or 0 if that is unknown.
  int64_t missing_bytes() const;

  /// Returns whether tensors are here that wait for their bucket.
  bool holds_waiting() const { return waiting_ > 0; }
  /// Returns the oldest of them for which `is_evidence` holds, or null.
  template <class Function>
  const Entry* find_waiting(Function&& is_evidence) const {
    for (const Entry* entry = oldest_; entry != nullptr; entry = entry->newer)
      if (entry->waits_in_plan && is_evidence(*entry)) return entry;
    return nullptr;
  }
  /// Takes out and returns the entries that wait for their bucket, in order of submission. Nothing
  /// of the plan can be launched afterwards.
  std::vector<Entry*> take_waiting();
  /// Takes out and returns every entry, waiting or in launched buckets, in order of submission.
  std::vector<Entry*> take_all();
  /// Called when an entry is over. The plan no longer holds it.
  void release(Entry* entry);

 private:
  struct TensorState {
    Entry* here = nullptr;          // the submitted entry, until its last slice is launched
    int slices = 0;                 // number in the plan
    int launched = 0;               // number of those launched, for `here`
    std::vector<size_t> needed_by;  // buckets that are not launched without it
  };

  Plan plan_;
  const int rank_, size_;
  bool deviates_ = false;
  uint64_t next_sequence_ = 0;
  size_t next_index_ = 0;
  std::vector<TensorState> tensors_;
  std::vector<int> missing_;  // per bucket: tensors that it needs and that are not here
  bool inverted_ = false;     // a later bucket was complete first in this step
  uint64_t order_ = 0;        // hash of the order of this step's tensors
  uint64_t last_order_ = 0;   // the same of the last step
  int inverted_steps_ = 0;
  int waiting_ = 0;
  Entry* oldest_ = nullptr;  // list of the entries held, in order of submission
  Entry* newest_ = nullptr;
};

}  // namespace tutti
