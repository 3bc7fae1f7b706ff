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
/// Returns when a rank left that an operation needs and that has not finished it; kNever: none
/// did. A receive from any rank needs the last one that may send.
Micros needed_left(const View& view, const OperationRecord& operation);
/// Returns whether ranks use one name for blocking and for asynchronous calls.
bool mixes_calls(const Case& from);

}  // namespace tutti::simulation
