#include "tutti/collectives/chooser.h"

#include <fmt/format.h>

#include <limits>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max();
constexpr int64_t kAny = kInfinite;

// The built-in choice: the first row that fits, bytes < `below` and ranks <= `ranks`.
struct Row {
  CollectiveKind kind;
  bool rank_order;
  int64_t below;
  int64_t ranks;
  std::string_view name;
};
using Kind = CollectiveKind;
constexpr Row kTable[] = {
    {Kind::allreduce, true, 16 << 10, 8, "one_shot"},
    {Kind::allreduce, true, kAny, kAny, "two_shot"},
    {Kind::allreduce, false, 16 << 10, 4, "one_shot"},
    {Kind::allreduce, false, 64 << 10, kAny, "recursive_doubling"},
    {Kind::allreduce, false, 4 << 20, 4, "two_shot"},
    {Kind::allreduce, false, 4 << 20, 32, "halving_doubling"},
    {Kind::allreduce, false, kAny, kAny, "ring"},
    {Kind::reduce, true, kAny, kAny, "direct"},
    {Kind::reduce, false, 64 << 10, 8, "direct"},
    {Kind::reduce, false, kAny, kAny, "binomial_tree"},
    {Kind::broadcast, false, kAny, kAny, "binomial_tree"},
    {Kind::allgather, false, kAny, kAny, "direct"},
    {Kind::gather, false, kAny, kAny, "direct"},
    {Kind::scatter, false, kAny, kAny, "direct"},
    {Kind::reduce_scatter, false, kAny, kAny, "direct"},
    {Kind::alltoall, false, kAny, kAny, "pairwise"},
    {Kind::send, false, kAny, kAny, "direct"},
    {Kind::recv, false, kAny, kAny, "direct"},
    {Kind::barrier, false, kAny, kAny, "dissemination"},
};

std::optional<CollectiveKind> parse_kind(std::string_view text) {
  for (int i = 0; i < kCollectiveKindCount; ++i)
    if (to_string(static_cast<CollectiveKind>(i)) == text) return static_cast<CollectiveKind>(i);
  return {};
}

}  // namespace

Chooser::Chooser(std::string_view scores) {
  if (scores.empty()) return;
  for (const auto& part : split_text(scores, ';')) {
    const auto refuse = [&](const std::string& what, std::string_view wanted) {
      return Error(ErrorCode::invalid_argument,
                   fmt::format("TUTTI_ALGORITHMS: cannot read \"{}\" in \"{}\" (want {})", what,
                               part, wanted));
    };
    const auto colon = part.find(':');
    const auto kind = parse_kind(std::string_view(part).substr(0, colon));
    if (colon == part.npos || !kind)
      throw refuse(part.substr(0, colon),
                   "kind:low-high=algorithm, such as allreduce:0-32K=one_shot");
    for (const auto& entry : split_text(std::string_view(part).substr(colon + 1), ',')) {
      const auto dash = entry.find('-'), equals = entry.find('=');
      if (dash == entry.npos || equals == entry.npos || dash > equals)
        throw refuse(entry, "low-high=algorithm, such as 0-32K=one_shot");
      const auto low = parse_size(entry.substr(0, dash));
      const auto high_text = entry.substr(dash + 1, equals - dash - 1);
      const auto high = high_text == "inf" ? kInfinite : parse_size(high_text).value_or(-1);
      if (!low || high <= *low) throw refuse(entry, "sizes with an optional K, M or G, or inf");
      entries_.push_back({*kind, *low, high, &find_algorithm(*kind, entry.substr(equals + 1))});
    }
  }
}

const Algorithm& Chooser::choose(const Question& question) const {
  const bool rank_order = question.determinism == Determinism::rank_order;
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (entry->kind != question.kind || question.bytes < entry->low ||
        question.bytes >= entry->high)
      continue;
    if (rank_order && !entry->algorithm->reduces_in_rank_order)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("TUTTI_ALGORITHMS asks for {}, which does not reduce in rank order as "
                      "TUTTI_DETERMINISM=rank_order promises; take either back",
                      entry->algorithm->name));
    return *entry->algorithm;
  }
  for (const auto& row : kTable) {
    if (row.kind != question.kind || question.bytes >= row.below || question.size > row.ranks)
      continue;
    if (row.rank_order && !rank_order) continue;
    const auto& algorithm = find_algorithm(row.kind, row.name);
    if (rank_order && !algorithm.reduces_in_rank_order) continue;
    return algorithm;
  }
  return find_algorithm(question.kind, "direct");
}

}  // namespace tutti
