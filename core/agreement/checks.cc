#include "tutti/core/agreement/checks.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <unordered_set>

#include "tutti/base/text.h"
#include "tutti/core/agreement/pair_learner.h"

namespace tutti {

namespace {

bool is_rank(int64_t number, int size) { return number >= 0 && number < size; }

// Returns whether every count is at least 0 and small enough that their sum does not overflow.
bool are_rows(const std::vector<int64_t>& rows) {
  return std::ranges::all_of(rows,
                             [](int64_t count) { return count >= 0 && count <= kMostElements; });
}

bool is_ascending(const std::vector<int64_t>& ranks) {
  return std::ranges::adjacent_find(ranks, std::greater_equal()) == ranks.end();
}

}  // namespace

void check_signature(const Signature& signature) {
  const auto count = signature.shape.count();
  need_of_message(count <= kMostElements &&
                      std::ranges::all_of(signature.shape.extents(),
                                          [](int64_t extent) { return extent <= kMostElements; }),
                  "it names a tensor that is larger than memory can be");
  need_of_message(signature.begin >= 0 && signature.begin <= count,
                  "it names an offset beyond the end of a tensor");
}

void check_request(const Request& request, int rank, int size) {
  const auto& signature = request.signature;
  const auto of_ranks = static_cast<size_t>(size);
  const bool is_from_any = signature.kind == CollectiveKind::recv && signature.root == kFromAnyRank;
  need_of_message(is_operation_name(request.name), "it asks for an operation without a name");
  need_of_message(is_from_any || is_rank(signature.root, size),
                  "it asks for a root that is not a rank");
  need_of_message(!is_pair(signature.kind) || signature.root != rank, "it sends to itself");
  need_of_message(request.rows.empty() || request.rows.size() == of_ranks,
                  "its list of rows does not fit the number of ranks");
  need_of_message(std::ranges::all_of(request.rows, [](int64_t count) { return count >= 0; }),
                  "it gives a negative number of rows");
  if (!exchanges_parts(signature.kind)) return;
  // The ranks that receive the rows rely on these counts.
  need_of_message(request.rows.size() == of_ranks && are_rows(request.rows),
                  "its list does not give rows to each rank");
}

void check_response(const Response& response, int size) {
  const auto& rows = response.rows;
  const auto of_ranks = static_cast<size_t>(size);
  if (response.all_joined)
    return need_of_message(rows.size() == 1 && is_rank(rows[0], size), "no rank joined last");
  need_of_message(is_operation_name(response.name), "it answers an operation without a name");
  if (response.error)
    return need_of_message(!is_pair(response.signature.kind) || rows.size() == 2,
                           "it does not name a sender and a receiver");
  need_of_message(response.pair >= -1 && response.pair < kMostPairs,
                  "it makes a pair whose id is out of range");
  need_of_message(
      std::ranges::all_of(response.joined, [&](int64_t r) { return is_rank(r, size); }) &&
          is_ascending(response.joined) && response.joined.size() < of_ranks,
      "it counts ranks that cannot have joined");
  need_of_message(is_rank(response.signature.root, size) ||
                      (is_pair(response.signature.kind) && response.signature.root == kFromAnyRank),
                  "it names a root that is not a rank");
  need_of_message(are_rows(rows), "it gives an impossible number of rows");
  const auto kind = response.signature.kind;
  if (is_pair(kind))
    return need_of_message(
        rows.size() == 2 && is_rank(rows[0], size) && is_rank(rows[1], size) && rows[0] != rows[1],
        "it does not name a sender and a receiver");
  bool fits = rows.size() == (has_rows(kind) ? of_ranks : 0);
  if (deals_parts(kind)) fits |= rows.empty();
  // The list has the rows from each rank, and then the largest number of rows from any rank.
  if (exchanges_parts(kind))
    fits = rows.size() == of_ranks + 1 && *std::ranges::max_element(rows) == rows.back();
  need_of_message(fits, "its list of rows does not fit the number of ranks");
}

bool answers(const Request& asked, const Response& response, int rank, int size) {
  const auto &own = asked.signature, &answered = response.signature;
  const auto& rows = response.rows;
  const auto place = static_cast<size_t>(rank);
  const auto rows_of = [](const Shape& shape) { return shape.rank() == 0 ? 1 : shape[0]; };
  const auto sum = [&] { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); };
  bool fits = own.kind == answered.kind || own.kind == CollectiveKind::recv;
  const bool has_input = !is_described_by_root(own.kind) || rank == answered.root;
  fits &= own.dtype == answered.dtype || !has_input;
  if (!fits) return false;  // the rows may then belong to another kind of operation
  if (is_pair(own.kind)) return own.shape.count() == answered.shape.count();
  switch (traits(own.kind).input) {
    case Content::nothing:
      break;
    case Content::whole:
      fits &= own.shape == answered.shape;
      break;
    case Content::parts:
      fits &= !has_input ||
              (own.shape == answered.shape && (rows.empty() || sum() == rows_of(own.shape)));
      if (asked.output_rows >= 0)
        fits &= own.dtype == answered.dtype &&
                own.shape.row_count() == answered.shape.row_count() &&
                asked.output_rows ==
                    (rows.empty() ? even_share(rows_of(answered.shape), rank, size) : rows[place]);
      break;
    case Content::part:
      fits &= own.shape.row_count() == answered.shape.row_count() &&
              rows[place] == rows_of(own.shape) &&
              (asked.output_rows < 0 || asked.output_rows == sum());
      break;
    case Content::exchanged: {
      const auto of_ranks = asked.rows.size();
      const int64_t row_count = own.shape.row_count(), longest = rows.back();
      fits &= row_count == answered.shape.row_count() && rows.size() == of_ranks + 1 &&
              rows[place] == asked.rows[place] &&
              longest >= *std::ranges::max_element(asked.rows) &&
              (row_count == 0 || longest <= kMostElements / row_count);
      fits &= asked.output_rows < 0 || asked.output_rows == sum() - longest;
      break;
    }
  }
  return fits;
}

void check_answer(const Request& asked, const Response& response, int rank, int size) {
  need_of_message(answers(asked, response, rank, size), "it does not answer what was asked");
}

void check_planned(const Plan::Tensor& tensor, int size) {
  check_response(tensor.answer(), size);
  if (!exchanges_parts(tensor.signature.kind)) return;
  need_of_message(tensor.given.size() == static_cast<size_t>(size) && are_rows(tensor.given) &&
                      *std::ranges::max_element(tensor.given) <= tensor.rows.back(),
                  "a plan does not give rows to each rank");
}

void check_plan(const std::vector<Plan::Tensor>& tensors, int64_t partition_bytes) {
  need_of_message(!tensors.empty() && tensors.size() <= PlanLearner::kMostTensors,
                  "a plan has no tensor, or too many");
  std::unordered_set<std::string_view> names;
  for (const auto& tensor : tensors) {
    need_of_message(is_operation_name(tensor.name) && PlanLearner::can_replay(tensor.signature),
                    "a plan has an operation that cannot be replayed");
    need_of_message(names.insert(tensor.name).second, "a plan has one tensor twice");
  }
  need_of_message(count_pieces(tensors, partition_bytes) <= kMostPieces,
                  "a plan has too many pieces");
}

int64_t count_pieces(const std::vector<Plan::Tensor>& tensors, int64_t partition_bytes) {
  int64_t pieces = 0;
  for (const auto& tensor : tensors) {
    const int64_t bytes = tensor.signature.shape.count() * size_of(tensor.signature.wire);
    pieces += 1 + (partition_bytes > 0 ? bytes / partition_bytes : 0);
  }
  return pieces;
}

}  // namespace tutti
