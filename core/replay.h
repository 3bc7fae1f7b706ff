#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/entry.h"
#include "tutti/core/plan.h"

namespace tutti {

/// One rank's side of a plan: which tensors of which step are here, which bucket is next. Pure: it
/// says what to launch and never waits. Buckets are launched strictly in order; a rank that sees
/// that the plan does not fit launches the next bucket with a veto, after which nothing of the plan
/// is launched any more.
class Replay {
 public:
  explicit Replay(Plan plan);

  const Plan& plan() const { return plan_; }
  /// Takes a tensor of the plan that looks as the plan says. False: the plan does not know it.
  /// Throws nothing; a tensor that changed is taken too and makes deviates() true.
  bool offer(Entry* entry);
  bool deviates() const { return deviates_; }

  /// A bucket that can be launched now.
  struct Next {
    uint64_t sequence = 0;
    const Bucket* bucket = nullptr;
    std::vector<Entry*> entries;  // one per slice
  };
  /// The next bucket if all of its tensors are here (and all members of their groups).
  std::optional<Next> next();
  /// The next bucket was launched, with data.
  void launched();

  uint64_t next_sequence() const { return next_sequence_; }
  const Bucket& next_bucket() const;
  /// Tensors that are not here and without which the next bucket is not launched.
  std::vector<std::string> missing() const;
  /// Tensors that are here and wait for their bucket, oldest first.
  const std::vector<Entry*>& waiting() const { return waiting_; }
  /// Every entry that the plan still holds, submission order: waiting or in launched buckets.
  std::vector<Entry*> take_all();
  /// An entry of a launched bucket is over; the plan holds it no more.
  void release(Entry* entry);

 private:
  bool here(int64_t tensor) const;
  size_t next_index() const { return next_sequence_ % plan_.buckets.size(); }

  Plan plan_;
  bool deviates_ = false;
  uint64_t next_sequence_ = 0;
  // Tensors that each bucket needs here: its own, and members of their groups that come later.
  std::vector<std::vector<int64_t>> needs_;
  // Entries of each tensor that are not launched completely, oldest first.
  std::vector<std::deque<Entry*>> queues_;
  std::vector<int> slices_;    // slices of each tensor in the plan
  std::vector<int> launched_;  // of these, launched for the first in the queue
  std::vector<Entry*> waiting_;
  std::vector<Entry*> held_;  // submission order
};

}  // namespace tutti
