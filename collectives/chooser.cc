#include "tutti/collectives/chooser.h"

#include <fmt/format.h>

#include <limits>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int64_t operator""_K(unsigned long long count) {
  return static_cast<int64_t>(count) << 10;
}
constexpr int64_t operator""_M(unsigned long long count) {
  return static_cast<int64_t>(count) << 20;
}
constexpr int kAnySize = std::numeric_limits<int>::max();

// The first rule that fits decides. `bytes` is of the whole collective.
struct Rule {
  CollectiveKind kind;
  std::string_view algorithm;
  int64_t below_bytes = kNoLimit;
  int most_ranks = kAnySize;
  bool two_levels =
      false;  // only where several hosts have more ranks than hosts, and any order goes
  int64_t from_bytes = 0;
};

using enum CollectiveKind;
constexpr Rule kRules[] = {
    // Below, the rounds inside the hosts cost more than the bytes between them.
    {allreduce, "hierarchical", kNoLimit, kAnySize, true, 16_K},
    // Measured; docs/decisions.md says how.
    {allreduce, "one_shot", 32_K, 2},
    {allreduce, "one_shot", 4_K, 8},
    {allreduce, "recursive_doubling", 32_K},
    {allreduce, "two_shot", kNoLimit, 3},
    {allreduce, "halving_doubling", kNoLimit, 4},
    {allreduce, "halving_doubling", 4_M},
    {allreduce, "ring"},
    {reduce_scatter, "hierarchical", kNoLimit, kAnySize, true, 16_K},
    {reduce_scatter, "direct", 64_K},
    {reduce_scatter, "direct", kNoLimit, 4},
    {reduce_scatter, "ring"},
    {reduce, "binomial_tree"},
    {allgather, "hierarchical", kNoLimit, kAnySize, true, 16_K},
    {allgather, "direct", kNoLimit, 8},
    {allgather, "bruck", 64_K},
    {allgather, "ring"},
    {broadcast, "hierarchical", kNoLimit, kAnySize, true},
    {broadcast, "binomial_tree", 64_K},
    {broadcast, "binomial_tree", kNoLimit, 2},
    {broadcast, "chain"},
    {gather, "direct"},
    {scatter, "direct"},
    {alltoall, "pairwise"},
    {send, "direct"},
    {recv, "direct"},
    {barrier, "dissemination"},
};

// Those that reduce, under determinism=rank_order.
constexpr Rule kRankOrderRules[] = {
    {allreduce, "one_shot", 32_K, 2},
    {allreduce, "one_shot", 4_K, 8},
    {allreduce, "two_shot"},
    {reduce_scatter, "direct"},
    {reduce, "direct"},
};

bool fits(const Rule& rule, const Question& question) {
  return rule.kind == question.kind && question.bytes >= rule.from_bytes &&
         question.bytes < rule.below_bytes && question.size <= rule.most_ranks &&
         (!rule.two_levels || (question.hosts > 1 && question.size > question.hosts));
}

[[noreturn]] void refuse(std::string_view part, std::string_view wanted) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("\"{}\" is not a choice of algorithms: {}; an example: "
                          "allreduce:0-32K=one_shot,32K-inf=ring;broadcast:0-inf=binomial_tree",
                          part, wanted));
}

void require_rank_order(const Algorithm& algorithm) {
  if (algorithm.reduces_in_rank_order) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the algorithm {} of {} does not reduce in rank order, as "
                          "determinism=rank_order asks; leave it out of the choice of algorithms "
                          "or ask for another determinism",
                          algorithm.name, to_string(algorithm.kind)));
}

CollectiveKind read_kind(std::string_view part, std::string_view name) {
  for (int i = 0; i < kCollectiveKindCount; ++i)
    if (to_string(static_cast<CollectiveKind>(i)) == name) return static_cast<CollectiveKind>(i);
  refuse(part, fmt::format("there is no collective \"{}\"", name));
}

int64_t read_size(std::string_view part, std::string_view text) {
  if (text == "inf") return kNoLimit;
  const auto size = parse_size(text);
  if (!size)
    refuse(part,
           fmt::format("\"{}\" is no size (want digits and an optional K, M or G, or inf)", text));
  return *size;
}

}  // namespace

Chooser::Chooser(std::string_view scores, Determinism determinism) {
  if (scores.empty()) return;
  for (const auto& part : split_text(scores, ';')) {
    const auto colon = part.find(':');
    if (colon == std::string::npos) refuse(part, "want a collective, a colon and ranges");
    const auto kind = read_kind(part, std::string_view(part).substr(0, colon));
    for (const auto& range : split_text(std::string_view(part).substr(colon + 1), ',')) {
      const std::string_view text = range;
      const auto equals = text.find('='), dash = text.find('-');
      if (equals == text.npos || dash > equals) refuse(part, "want ranges like 0-32K=ring");
      const int64_t low = read_size(part, text.substr(0, dash));
      const int64_t high = read_size(part, text.substr(dash + 1, equals - dash - 1));
      if (low >= high) refuse(part, fmt::format("the range \"{}\" is empty", range));
      const auto& algorithm = find_algorithm(kind, text.substr(equals + 1));
      if (determinism == Determinism::rank_order) require_rank_order(algorithm);
      entries_.push_back({kind, low, high, &algorithm});
    }
  }
}

const Algorithm& Chooser::choose(const Question& question) const {
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (entry->kind != question.kind || question.bytes < entry->low ||
        question.bytes >= entry->high)
      continue;
    if (question.determinism == Determinism::rank_order) require_rank_order(*entry->algorithm);
    return *entry->algorithm;
  }
  if (question.determinism == Determinism::rank_order && reduces(question.kind)) {
    for (const auto& rule : kRankOrderRules)
      if (fits(rule, question)) return find_algorithm(rule.kind, rule.algorithm);
  }
  for (const auto& rule : kRules)
    if (fits(rule, question)) return find_algorithm(rule.kind, rule.algorithm);
  throw Error(ErrorCode::internal,
              fmt::format("no algorithm is known for {}", to_string(question.kind)));
}

}  // namespace tutti
