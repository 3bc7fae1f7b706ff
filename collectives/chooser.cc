#include "tutti/collectives/chooser.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
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

// The first rule that fits applies. `bytes` is the size of the whole collective.
struct Rule {
  CollectiveKind kind;
  std::string_view algorithm;
  int64_t below_bytes = kNoLimit;
  int most_ranks = kAnySize;
  bool two_levels = false;  // only for several hosts with more ranks than hosts
  int64_t from_bytes = 0;
  // Measured threshold that replaces below_bytes.
  std::optional<int64_t> Thresholds::*measured = nullptr;
};

using enum CollectiveKind;
constexpr Rule kRules[] = {
    // Below 16 KiB, the rounds within the hosts cost more than they save between the hosts.
    {allreduce, "hierarchical", kNoLimit, kAnySize, true, 16_K},
    // These sizes were measured; docs/decisions.md describes how.
    {allreduce, "one_shot", 32_K, 2, false, 0, &Thresholds::one_shot_below},
    {allreduce, "one_shot", 4_K, 8, false, 0, &Thresholds::one_shot_below},
    {allreduce, "recursive_doubling", 32_K, kAnySize, false, 0,
     &Thresholds::recursive_doubling_below},
    {allreduce, "two_shot", kNoLimit, 3},
    {allreduce, "halving_doubling", kNoLimit, 4, false, 0, &Thresholds::halving_doubling_below},
    {allreduce, "halving_doubling", 4_M, kAnySize, false, 0, &Thresholds::halving_doubling_below},
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

// Rules for collectives that reduce. They apply under determinism=rank_order, and if no algorithm
// of kRules supports the collective's Sums.
constexpr Rule kRankOrderRules[] = {
    {allreduce, "one_shot", 32_K, 2},
    {allreduce, "one_shot", 4_K, 8},
    {allreduce, "two_shot"},
    {reduce_scatter, "direct"},
    {reduce, "direct"},
};

// For a broadcast, two levels add no rounds of reducing within the hosts. So if they pay at all,
// they pay at every size.
int64_t first_of_two_levels(const Rule& rule, const Thresholds& thresholds) {
  if (!thresholds.two_levels_from) return rule.from_bytes;
  return rule.kind == broadcast && *thresholds.two_levels_from != Thresholds::kNever
             ? 0
             : *thresholds.two_levels_from;
}

bool fits(const Rule& rule, const Question& question, const Thresholds& thresholds = {}) {
  const int64_t below = rule.measured != nullptr
                            ? (thresholds.*rule.measured).value_or(rule.below_bytes)
                            : rule.below_bytes;
  const int64_t from = rule.two_levels ? first_of_two_levels(rule, thresholds) : rule.from_bytes;
  return rule.kind == question.kind && question.bytes >= from && question.bytes < below &&
         question.size <= rule.most_ranks &&
         (!rule.two_levels || (question.hosts > 1 && question.size > question.hosts));
}

[[noreturn]] void refuse(std::string_view part, std::string_view wanted) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("\"{}\" is not a choice of algorithms: {}; an example: "
                          "allreduce:0-32K=one_shot,32K-inf=ucx/ring;broadcast:0-inf=ucx/auto",
                          part, wanted));
}

[[noreturn]] void refuse_name(std::string_view part, std::string_view what, std::string_view name,
                              std::string_view whose, const std::vector<std::string>& names) {
  const auto nearest = nearest_word(name, names);
  refuse(part, fmt::format("there is no {} \"{}\"{}{} (expected {})", what, name, whose,
                           nearest ? fmt::format(", did you mean \"{}\"?", *nearest) : "",
                           fmt::join(names, ", ")));
}

void require_rank_order(const Algorithm& algorithm) {
  if (algorithm.reduces_in_rank_order) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format(
          "the algorithm {} of {} does not reduce in rank order, as determinism=rank_order "
          "requires; leave it out of the choice of algorithms, or choose another determinism",
          algorithm.name, to_string(algorithm.kind)));
}

CollectiveKind read_kind(std::string_view part, std::string_view name) {
  std::vector<std::string> names;
  for (int i = 0; i < kCollectiveKindCount; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    if (to_string(kind) == name) return kind;
    names.emplace_back(to_string(kind));
  }
  refuse_name(part, "collective", name, "", names);
}

const Algorithm* read_algorithm(std::string_view part, CollectiveKind kind, std::string_view name) {
  if (name == "auto") return nullptr;
  std::vector<std::string> names = {"auto"};
  for (const auto& algorithm : algorithms()) {
    if (algorithm.kind != kind) continue;
    if (algorithm.name == name) return &algorithm;
    names.emplace_back(algorithm.name);
  }
  refuse_name(part, "algorithm", name, fmt::format(" for {}", to_string(kind)), names);
}

// A send and its matching recv use the same algorithm, so a score for one applies to both.
std::vector<CollectiveKind> sides_of(CollectiveKind kind) {
  return is_pair(kind) ? std::vector{send, recv} : std::vector{kind};
}

int64_t read_size(std::string_view part, std::string_view text) {
  if (text == "inf") return kNoLimit;
  const auto size = parse_size(text);
  if (!size)
    refuse(part,
           fmt::format("\"{}\" is not a size (expected digits and an optional K, M or G, or inf)",
                       text));
  return *size;
}

}  // namespace

int64_t agreed_bytes(const Collective& collective) {
  if (exchanges_parts(collective.kind)) return 0;
  const auto counts = collective.send_counts;
  return std::accumulate(counts.begin(), counts.end(), int64_t{0}) * size_of(collective.dtype);
}

Chooser::Chooser(std::string_view scores, Determinism determinism, Thresholds thresholds)
    : thresholds_(thresholds) {
  if (scores.empty()) return;
  for (const auto& part : split_text(scores, ';')) {
    const auto colon = part.find(':');
    if (colon == std::string::npos) refuse(part, "expected a collective, a colon and ranges");
    const auto kind = read_kind(part, std::string_view(part).substr(0, colon));
    for (const auto& range : split_text(std::string_view(part).substr(colon + 1), ',')) {
      const std::string_view text = range;
      const auto equals = text.find('='), dash = text.find('-');
      if (equals == text.npos || dash > equals) refuse(part, "expected ranges like 0-32K=ring");
      const int64_t low = read_size(part, text.substr(0, dash));
      const int64_t high = read_size(part, text.substr(dash + 1, equals - dash - 1));
      if (low >= high) refuse(part, fmt::format("the range \"{}\" is empty", range));
      const auto chosen = text.substr(equals + 1);
      const auto slash = chosen.find('/');
      if (slash == 0) refuse(part, "expected a backend before the slash");
      const auto backend = slash == chosen.npos ? "" : chosen.substr(0, slash);
      for (const auto side : sides_of(kind)) {
        const auto* algorithm =
            read_algorithm(part, side, chosen.substr(slash == chosen.npos ? 0 : slash + 1));
        if (determinism == Determinism::rank_order && algorithm != nullptr)
          require_rank_order(*algorithm);
        scores_.push_back({side, low, high, std::string(backend), algorithm,
                           fmt::format("{}:{}", to_string(side), range)});
      }
    }
  }
}

const Score* Chooser::find(CollectiveKind kind, int64_t bytes) const {
  for (auto score = scores_.rbegin(); score != scores_.rend(); ++score)
    if (score->kind == kind && bytes >= score->low && bytes < score->high) return &*score;
  return nullptr;
}

bool Chooser::overrides(CollectiveKind kind) const {
  return std::any_of(scores_.begin(), scores_.end(), [kind](const Score& score) {
    return score.kind == kind && score.algorithm != nullptr;
  });
}

const Algorithm& Chooser::choose(const Question& question) const {
  const auto* score = find(question.kind, question.bytes);
  if (score != nullptr && score->algorithm != nullptr && score->algorithm->keeps(question.sums)) {
    if (question.determinism == Determinism::rank_order) require_rank_order(*score->algorithm);
    return *score->algorithm;
  }
  const bool is_rank_order = question.determinism == Determinism::rank_order;
  const auto choose_by = [&](std::span<const Rule> rules,
                             const Thresholds& thresholds) -> const Algorithm* {
    for (const auto& rule : rules) {
      if (!fits(rule, question, thresholds)) continue;
      const auto& algorithm = find_algorithm(rule.kind, rule.algorithm);
      if (algorithm.keeps(question.sums)) return &algorithm;
      if (!rule.two_levels) break;
    }
    return nullptr;
  };
  if (!is_rank_order || !reduces(question.kind))
    if (const auto* algorithm = choose_by(kRules, thresholds_)) return *algorithm;
  if (const auto* algorithm = choose_by(kRankOrderRules, {})) return *algorithm;
  throw Error(ErrorCode::internal,
              fmt::format("no algorithm is known for {}", to_string(question.kind)));
}

}  // namespace tutti
