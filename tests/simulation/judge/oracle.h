#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/record.h"

namespace tutti::simulation {

/// Holds what one rank said to an operation.
struct Voice {
  const OperationRecord* record = nullptr;
  const Operation* operation = nullptr;
  std::string group;
  size_t group_size = 0;
};

/// The submissions of several ranks that are one operation: the n-th of a name on each rank, or of
/// a name between two ranks, or the n-th blocking call where these are not matched by name. A rank
/// that has joined has no voice.
struct Meeting {
  bool is_pair = false;
  int from = 0, to = 0;         // of a pair
  std::map<int, Voice> voices;  // by rank
  std::vector<int> joined;      // take part with nothing
  std::vector<int> absent;      // needed, but never asked for it
  bool is_complete() const { return absent.empty(); }
};

/// The plain model of what operations mean, which knows nothing of the code under test. `record`
/// only tells which submissions were taken, and from whom a receive from any rank took.
class Oracle {
 public:
  Oracle(const Case& from, const Record& record);
  const std::vector<Meeting>& meetings() const { return meetings_; }
  /// Finds the meeting of an operation; null: it is a join, was refused, or is a receive from any
  /// rank that took nothing.
  const Meeting* meeting_of(const OperationRecord& operation) const;
  const Operation* operation_of(const OperationRecord& operation) const;
  const Action& action_of(const OperationRecord& operation) const;
  bool is_join(const OperationRecord& operation) const;

  /// Why the ranks disagree, so that all of them get an error; empty: they agree. Members of one
  /// group share what any of them has.
  std::string disagreement(const Meeting& meeting) const;
  /// Computes what `rank` gets if it ends well, to the bit.
  std::vector<std::byte> result(const Meeting& meeting, int rank) const;

 private:
  std::string own_disagreement(const Meeting& meeting) const;
  const Case& case_;
  std::vector<Meeting> meetings_;
  std::map<const OperationRecord*, size_t> place_;
};

/// Whether an operation failed because a rank that it needs had joined. For a pair it is no use of
/// their name: once that join has failed, the peer's next one meets the next one of this rank.
bool met_a_joined_rank(const OperationRecord& said);

/// `rows` that are dealt equally, the remainder to the lowest ranks, or as `splits` say.
int64_t rows_of(const Operation& operation, int rank, int size);

}  // namespace tutti::simulation
