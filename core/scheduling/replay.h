#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/agreement/plan.h"
#include "tutti/core/scheduling/entry.h"

namespace tutti {

/// One rank's progress in a plan (a recorded step that is repeated): which of its tensors are
/// submitted, and which bucket is launched next. Pure: it decides what to launch and never waits.
/// Buckets are launched strictly in order. If a rank finds that the plan does not fit, it launches
/// the next bucket with a veto, and launches no more of the plan. The cost per tensor does not
/// depend on the number of tensors.
class Replay {
 public:
  explicit Replay(Plan plan, int rank = 0, int size = 1);

  const Plan& plan() const { return plan_; }
  /// Takes an entry if its tensor is in the plan, else returns false. If the tensor's properties
  /// changed, deviates() is true from then on.
  bool offer(Entry* entry);
  bool deviates() const { return deviates_; }

  /// Returns whether all tensors of the next bucket, and all members of their groups, are
  /// submitted.
  bool ready() const { return !deviates_ && missing_[next_index_] == 0; }
  uint64_t next_sequence() const { return next_sequence_; }
  size_t next_index() const { return next_index_; }
  const Bucket& next_bucket() const { return plan_.buckets[next_index_]; }
  /// Puts the entries of the next bucket into `entries`, one per slice. Requires ready().
  void entries_of_next(std::vector<Entry*>& entries) const;
  /// Called when this rank has launched the next bucket with data.
  void launched();

  /// Returns how many steps in succession had the same order of tensors and completed a later
  /// bucket before an earlier one.
  int inverted_steps() const { return inverted_steps_; }

  /// Returns the names of the next bucket's tensors that are not submitted yet.
  std::vector<std::string> missing() const;
  bool lacks_some() const { return missing_[next_index_] > 0; }
  /// Returns the number of bytes that the next bucket still lacks, or 0 if that is unknown.
  int64_t missing_bytes() const;

  /// Returns whether submitted tensors wait for their bucket.
  bool holds_waiting() const { return waiting_ > 0; }
  /// Returns the oldest waiting entry for which `is_evidence` returns true, or null.
  template <class Function>
  const Entry* find_waiting(Function&& is_evidence) const {
    for (const Entry* entry = oldest_; entry != nullptr; entry = entry->newer)
      if (entry->waits_in_plan && is_evidence(*entry)) return entry;
    return nullptr;
  }
  /// Removes and returns the entries that wait for their bucket, in order of submission. After that
  /// no bucket of the plan can be launched any more.
  std::vector<Entry*> take_waiting();
  /// Removes and returns all entries, also those in launched buckets, in order of submission.
  std::vector<Entry*> take_all();
  /// Called when an entry has ended. The plan no longer holds it.
  void release(Entry* entry);

 private:
  struct TensorState {
    Entry* here = nullptr;          // the submitted entry, until its last slice is launched
    int slices = 0;                 // number of its slices in the plan
    int launched = 0;               // number of slices launched for `here`
    std::vector<size_t> needed_by;  // indices of buckets that cannot be launched without it
  };

  Plan plan_;
  const int rank_, size_;
  bool deviates_ = false;
  uint64_t next_sequence_ = 0;
  size_t next_index_ = 0;
  std::vector<TensorState> tensors_;
  std::vector<int> missing_;  // per bucket: number of needed tensors that are not submitted yet
  bool inverted_ = false;     // in this step a later bucket was complete before an earlier one
  uint64_t order_ = 0;        // hash of the tensors' order in this step
  uint64_t last_order_ = 0;   // hash of the tensors' order in the last step
  int inverted_steps_ = 0;
  int waiting_ = 0;
  Entry* oldest_ = nullptr;  // oldest entry in the list, which is in order of submission
  Entry* newest_ = nullptr;
};

}  // namespace tutti
