#pragma once

#include <vector>

#include "tutti/core/agreement/plan.h"
#include "tutti/core/agreement/request.h"

namespace tutti {

// What holds of every message that a rank writes, because ranks check it of themselves before they
// tell others. A reader that relied on it without looking would, for a damaged message, reach
// beyond memory, overflow, or blame itself. All throw DamagedMessage.

/// Elements, and rows, that no tensor of a process has. Those of all ranks together can be counted
/// without an overflow.
inline constexpr int64_t kMostElements = int64_t{1} << 42;
/// What a plan takes on each rank is bounded by this, whatever the sizes of its tensors.
inline constexpr int64_t kMostPieces = 1 << 16;

inline void need_of_message(bool holds, const char* otherwise) {
  if (!holds) throw DamagedMessage(otherwise);
}

void check_signature(const Signature& signature);
/// What `rank` asks for.
void check_request(const Request& request, int rank, int size);
/// What the coordinator answers.
void check_response(const Response& response, int size);
/// That this answer is about the memory that `rank` has for what it asked: a larger one would reach
/// beyond it.
bool answers(const Request& asked, const Response& response, int rank, int size);
void check_answer(const Request& asked, const Response& response, int rank, int size);
/// What a plan foresees, as one rank is told of it.
void check_planned(const Plan::Tensor& tensor, int size);
void check_plan(const std::vector<Plan::Tensor>& tensors, int64_t partition_bytes);

/// In how many pieces these tensors travel.
int64_t count_pieces(const std::vector<Plan::Tensor>& tensors, int64_t partition_bytes);

}  // namespace tutti
