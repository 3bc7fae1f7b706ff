#include "tutti/collectives/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/collectives/algorithms/algorithms.h"

namespace tutti {

std::span<const Algorithm> algorithms() {
  using enum CollectiveKind;
  static constexpr bool kInRankOrder = true, kAnyOrder = false, kScalesSums = true;
  static constexpr Algorithm kAlgorithms[] = {
      {"ring", allreduce, kAnyOrder, ring_allreduce},
      {"halving_doubling", allreduce, kAnyOrder, halving_doubling_allreduce},
      {"recursive_doubling", allreduce, kAnyOrder, recursive_doubling_allreduce},
      {"one_shot", allreduce, kInRankOrder, one_shot_allreduce},
      {"two_shot", allreduce, kInRankOrder, two_shot_allreduce},
      {"hierarchical", allreduce, kAnyOrder, hierarchical_allreduce, kScalesSums},
      {"ring", reduce_scatter, kAnyOrder, ring_reduce_scatter},
      {"direct", reduce_scatter, kInRankOrder, direct_reduce_scatter},
      {"hierarchical", reduce_scatter, kAnyOrder, hierarchical_reduce_scatter, kScalesSums},
      {"binomial_tree", reduce, kAnyOrder, binomial_tree_reduce},
      {"direct", reduce, kInRankOrder, direct_reduce},
      // The algorithms below do not reduce, so they satisfy any order.
      {"ring", allgather, kInRankOrder, ring_allgather},
      {"direct", allgather, kInRankOrder, direct_allgather},
      {"bruck", allgather, kInRankOrder, bruck_allgather},
      {"hierarchical", allgather, kInRankOrder, hierarchical_allgather},
      {"binomial_tree", broadcast, kInRankOrder, binomial_tree_broadcast},
      {"chain", broadcast, kInRankOrder, chain_broadcast},
      {"hierarchical", broadcast, kInRankOrder, hierarchical_broadcast},
      {"direct", gather, kInRankOrder, direct_gather},
      {"direct", scatter, kInRankOrder, direct_scatter},
      {"pairwise", alltoall, kInRankOrder, pairwise_alltoall},
      {"direct", send, kInRankOrder, direct_send},
      {"direct", recv, kInRankOrder, direct_recv},
      {"dissemination", barrier, kInRankOrder, dissemination_barrier},
  };
  return kAlgorithms;
}

const Algorithm& find_algorithm(CollectiveKind kind, std::string_view name) {
  std::string names;
  for (const auto& algorithm : algorithms()) {
    if (algorithm.kind != kind) continue;
    if (algorithm.name == name) return algorithm;
    if (!names.empty()) names += ", ";
    names += algorithm.name;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("there is no algorithm \"{}\" for {}; there are: {}", name,
                          to_string(kind), names));
}

namespace {

int64_t sum(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Returns the length of Problem::counts.
size_t send_counts_of(CollectiveKind kind, size_t size) {
  const auto& is = traits(kind);
  if (is.input == Content::whole || is.output == Content::whole) return 1;
  return is.input == Content::nothing ? 0 : size;
}

// Small blocking calls run this too, so the text is formatted only on failure.
template <class... Args>
void require(bool condition, const Problem& problem, fmt::format_string<Args...> wrong,
             Args&&... args) {
  if (condition) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} on rank {} of {}: {}", to_string(problem.kind), problem.rank,
                          problem.size, fmt::format(wrong, std::forward<Args>(args)...)));
}

}  // namespace

void require_valid(const Problem& problem) {
  const auto size = static_cast<size_t>(problem.size);
  require(problem.size >= 1 && problem.rank >= 0 && problem.rank < problem.size, problem,
          "no such rank");
  require(problem.root >= 0 && problem.root < problem.size, problem,
          "there is no rank {} (root or peer)", problem.root);
  require(!is_pair(problem.kind) || problem.root != problem.rank, problem,
          "a rank cannot send to or receive from itself");
  const size_t wanted = send_counts_of(problem.kind, size);
  require(problem.counts.size() == wanted, problem, "expected {} counts, got {}", wanted,
          problem.counts.size());
  const bool exchanges = exchanges_parts(problem.kind);
  const size_t wanted_recv = exchanges ? size : 0;
  require(problem.recv_counts.size() == wanted_recv, problem, "expected {} recv_counts, got {}",
          wanted_recv, problem.recv_counts.size());
  const auto is_negative = [](int64_t count) { return count < 0; };
  require(std::ranges::none_of(problem.counts, is_negative) &&
              std::ranges::none_of(problem.recv_counts, is_negative),
          problem, "a count is negative");
  const auto rank = static_cast<size_t>(problem.rank);
  require(!exchanges || problem.counts[rank] == problem.recv_counts[rank], problem,
          "what a rank sends to itself is not what it receives from itself");
  require(problem.hosts.empty() || problem.hosts.size() == size, problem,
          "expected {} hosts, got {}", size, problem.hosts.size());
}

namespace {

int64_t count_of(Content content, const Problem& problem, std::span<const int64_t> exchanged) {
  switch (content) {
    case Content::nothing:
      return 0;
    case Content::whole:
      return problem.counts[0];
    case Content::part:
      return problem.counts[static_cast<size_t>(problem.rank)];
    case Content::parts:
      return sum(problem.counts);
    case Content::exchanged:
      return sum(exchanged);
  }
  return 0;
}

}  // namespace

int64_t input_count(const Problem& problem) {
  const auto& is = traits(problem.kind);
  if (is.from_root && problem.rank != problem.root) return 0;
  return count_of(is.input, problem, problem.counts);
}

int64_t output_count(const Problem& problem) {
  const auto& is = traits(problem.kind);
  if (is.to_root && problem.rank != problem.root) return 0;
  return count_of(is.output, problem, problem.recv_counts);
}

}  // namespace tutti
