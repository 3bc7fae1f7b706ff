#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/agreement/plan.h"
#include "tutti/core/scheduling/entry.h"

namespace tutti {

/// One rank's side of a plan: which tensors of which step are here, which bucket is next. Pure: it
/// says what to launch and never waits. Buckets are launched strictly in order; a rank that sees
/// that the plan does not fit launches the next bucket with a veto, after which nothing of the plan
/// is launched any more. A tensor costs the same however many there are.
class Replay {
 public:
  explicit Replay(Plan plan, int rank = 0, int size = 1);

  const Plan& plan() const { return plan_; }
  /// Takes a tensor of the plan that looks as the plan says. False: the plan does not know it.
  /// A tensor that changed is taken too and makes deviates() true.
  bool offer(Entry* entry);
  bool deviates() const { return deviates_; }

  /// Whether all tensors of the next bucket are here (and all members of their groups).
  bool ready() const { return !deviates_ && missing_[next_index_] == 0; }
  uint64_t next_sequence() const { return next_sequence_; }
  size_t next_index() const { return next_index_; }
  const Bucket& next_bucket() const { return plan_.buckets[next_index_]; }
  /// Its entries, one a slice; if ready().
  void entries_of_next(std::vector<Entry*>& entries) const;
  /// The next bucket was launched, with data.
  void launched();

  /// Steps in a row that had one order, in which a later bucket was complete while the next one was
  /// not.
  int inverted_steps() const { return inverted_steps_; }

  /// Tensors that are not here and without which the next bucket is not launched.
  std::vector<std::string> missing() const;
  bool lacks_some() const { return missing_[next_index_] > 0; }
  /// Bytes of these.
  int64_t missing_bytes() const;

  /// Tensors that are here and wait for their bucket.
  bool holds_waiting() const { return waiting_ > 0; }
  /// The first of them for which `is_evidence` holds, oldest first; null if there is none.
  template <class Function>
  const Entry* find_waiting(Function&& is_evidence) const {
    for (const Entry* entry = oldest_; entry != nullptr; entry = entry->newer)
      if (entry->waits_in_plan && is_evidence(*entry)) return entry;
    return nullptr;
  }
  /// The entries that wait for their bucket, submission order; the plan holds them no more. Nothing
  /// of it can be launched any more.
  std::vector<Entry*> take_waiting();
  /// Every entry that the plan still holds, submission order: waiting or in launched buckets.
  std::vector<Entry*> take_all();
  /// An entry is over; the plan holds it no more, if it did.
  void release(Entry* entry);

 private:
  struct TensorState {
    Entry* here = nullptr;          // not launched completely
    int slices = 0;                 // in the plan
    int launched = 0;               // of these, for `here`
    std::vector<size_t> needed_by;  // buckets that are not launched without it
  };

  Plan plan_;
  const int rank_, size_;
  bool deviates_ = false;
  uint64_t next_sequence_ = 0;
  size_t next_index_ = 0;
  std::vector<TensorState> tensors_;
  std::vector<int> missing_;  // of each bucket: tensors that it needs and that are not here
  bool inverted_ = false;     // in this step
  uint64_t order_ = 0;        // of this step's tensors, hashed
  uint64_t last_order_ = 0;   // of the last step's
  int inverted_steps_ = 0;
  int waiting_ = 0;
  Entry* oldest_ = nullptr;  // of the entries held, a list in order of submission
  Entry* newest_ = nullptr;
};

}  // namespace tutti
