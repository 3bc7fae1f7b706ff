#pragma once

#include <initializer_list>
#include <string>

#include "tests/simulation/judge/invariants.h"
#include "tutti/base/error.h"

// Functions for the judge's rules on when operations end and with which errors.
namespace tutti::simulation {

/// Returns the name that findings give the operation.
std::string name_of_call(const OperationRecord& operation);
bool has_code(int code, std::initializer_list<ErrorCode> codes);
/// How to count a join that its rank closed over. If other operations of that rank were pending
/// too, rank 0 may not have counted the join, so the peers may or may not need that rank.
enum class Doubt : uint8_t { is_needed, is_not_needed };
/// Returns the time at which the first rank left that an operation needs and that had not finished
/// it, or kNever. A receive from any rank needs the last rank that may send. A join needs rank 0
/// and the ranks that have joined less often.
Micros needed_left(const View& view, const OperationRecord& operation, Doubt doubt);
/// Returns whether ranks use one name for blocking and for asynchronous calls.
bool mixes_calls(const Case& from);

}  // namespace tutti::simulation
