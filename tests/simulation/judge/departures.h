#pragma once

#include <initializer_list>
#include <string>

#include "tests/simulation/judge/invariants.h"
#include "tutti/base/error.h"

// The judge needs these functions for its rules on when operations end and for those on errors.
namespace tutti::simulation {

/// Returns the name that findings give the operation.
std::string name_of_call(const OperationRecord& operation);
bool has_code(int code, std::initializer_list<ErrorCode> codes);
/// Whether a join needs a rank that left is not always to be told: that rank closed over its own
/// join and over other operations, which may have kept rank 0 from counting that join.
enum class Doubt : uint8_t { is_needed, is_not_needed };
/// Returns when a rank left that an operation needs and that has not finished it; kNever: none
/// did. A receive from any rank needs the last one that may send. A join needs rank 0, and the
/// ranks that have not joined as often.
Micros needed_left(const View& view, const OperationRecord& operation, Doubt doubt);
/// Returns whether ranks use one name for blocking and for asynchronous calls.
bool mixes_calls(const Case& from);

}  // namespace tutti::simulation
