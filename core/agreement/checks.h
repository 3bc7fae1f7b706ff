#pragma once

#include <vector>

#include "tutti/core/agreement/plan.h"
#include "tutti/core/agreement/request.h"

namespace tutti {

// Checks of received messages. Every rank checks its own message before it sends it, so a failed
// check means that the message is damaged. A reader that used such a message could reach beyond
// memory, overflow, or blame itself. All checks throw DamagedMessage.

/// More elements or rows than any tensor of a process can have. The sum over all ranks still does
/// not overflow.
inline constexpr int64_t kMostElements = int64_t{1} << 42;
/// Bounds the memory that a plan needs on each rank, independent of its tensors' sizes.
inline constexpr int64_t kMostPieces = 1 << 16;

inline void need_of_message(bool holds, const char* otherwise) {
  if (!holds) throw DamagedMessage(otherwise);
}

void check_signature(const Signature& signature);
/// Checks a request of `rank`.
void check_request(const Request& request, int rank, int size);
/// Checks an answer of the coordinator.
void check_response(const Response& response, int size);
/// Returns whether this answer fits the memory that `rank` gave in its request. A larger answer
/// would reach beyond that memory.
bool answers(const Request& asked, const Response& response, int rank, int size);
void check_answer(const Request& asked, const Response& response, int rank, int size);
/// Checks a plan's tensor as one rank receives it.
void check_planned(const Plan::Tensor& tensor, int size);
void check_plan(const std::vector<Plan::Tensor>& tensors, int64_t partition_bytes);

/// Returns how many pieces these tensors are cut into.
int64_t count_pieces(const std::vector<Plan::Tensor>& tensors, int64_t partition_bytes);

}  // namespace tutti
