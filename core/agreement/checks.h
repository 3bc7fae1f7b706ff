#pragma once

#include <vector>

#include "tutti/core/agreement/plan.h"
#include "tutti/core/agreement/request.h"

namespace tutti {

// Checks of received messages. The sender has made the same checks, so a failed check means that
// the message is damaged. A damaged message could cause an access to invalid memory or an overflow,
// or make the receiving rank seem at fault. All checks throw DamagedMessage.

/// More elements or rows than any tensor can have. It is small enough that a sum over all ranks
/// does not overflow.
inline constexpr int64_t kMostElements = int64_t{1} << 42;
/// Greatest number of pieces in a plan. It bounds the plan's memory on each rank, whatever the
/// sizes of the tensors.
inline constexpr int64_t kMostPieces = 1 << 16;

inline void need_of_message(bool holds, const char* otherwise) {
  if (!holds) throw DamagedMessage(otherwise);
}

void check_signature(const Signature& signature);
/// Checks a request from `rank`.
void check_request(const Request& request, int rank, int size);
/// Checks an answer from the coordinator.
void check_response(const Response& response, int size);
/// Returns whether the answer fits the memory that `rank` gave in its request. An answer with more
/// elements would make this rank access memory outside its tensors.
bool answers(const Request& asked, const Response& response, int rank, int size);
void check_answer(const Request& asked, const Response& response, int rank, int size);
/// Checks a plan's tensor in the form that one rank receives.
void check_planned(const Plan::Tensor& tensor, int size);
void check_plan(const std::vector<Plan::Tensor>& tensors, int64_t partition_bytes);

/// Returns the number of pieces into which these tensors are cut.
int64_t count_pieces(const std::vector<Plan::Tensor>& tensors, int64_t partition_bytes);

}  // namespace tutti
