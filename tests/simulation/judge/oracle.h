#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/record.h"

namespace tutti::simulation {

/// One rank's part in an operation.
struct Voice {
  const OperationRecord* record = nullptr;
  const Operation* operation = nullptr;
  std::string group;
  size_t group_size = 0;
};

/// The submissions of several ranks that form one operation: the n-th with a name on each rank, or
/// with a name between two ranks, or the n-th blocking call where these are not matched by name. A
/// joined rank has no voice.
struct Meeting {
  bool is_pair = false;
  int from = 0, to = 0;         // of a pair
  std::map<int, Voice> voices;  // by rank
  std::vector<int> joined;      // ranks that take part with neutral elements
  std::vector<int> absent;      // ranks that are needed but never submitted it
  bool is_complete() const { return absent.empty(); }
};

/// A plain model of the operations' results, which uses none of the code under test. `record` only
/// supplies which submissions were accepted, and the sender of each receive from any rank.
class Oracle {
 public:
  Oracle(const Case& from, const Record& record);
  const std::vector<Meeting>& meetings() const { return meetings_; }
  /// Returns the meeting of an operation; null for a join, a refused operation, or a receive from
  /// any rank that took nothing.
  const Meeting* meeting_of(const OperationRecord& operation) const;
  const Operation* operation_of(const OperationRecord& operation) const;
  const Action& action_of(const OperationRecord& operation) const;
  bool is_join(const OperationRecord& operation) const;

  /// Returns why the ranks disagree, so that all of them get an error, or "". The members of a
  /// group share any disagreement.
  std::string disagreement(const Meeting& meeting) const;
  /// Computes the result of `rank` to the bit, if the operation ends well.
  std::vector<std::byte> result(const Meeting& meeting, int rank) const;

 private:
  std::string own_disagreement(const Meeting& meeting) const;
  const Case& case_;
  std::vector<Meeting> meetings_;
  std::map<const OperationRecord*, size_t> place_;
};

/// Returns whether an operation failed because a rank that it needs had joined. For a pair it does
/// not count as a use of the name: once that join has failed, the next uses of both ranks match.
bool met_a_joined_rank(const OperationRecord& said);

/// Returns the rows of `rank`: equal parts with the remainder to the lowest ranks, or as `splits`
/// say.
int64_t rows_of(const Operation& operation, int rank, int size);

}  // namespace tutti::simulation
