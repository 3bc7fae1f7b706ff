#include "tutti/collectives/schedule.h"

#include <fmt/format.h>

#include <numeric>

#include "tutti/base/error.h"
#include "tutti/collectives/allreduce.h"
#include "tutti/collectives/others.h"

namespace tutti {

namespace {

using Kind = CollectiveKind;
constexpr Algorithm kAlgorithms[] = {
    {"ring", Kind::allreduce, false, plan_ring_allreduce},
    {"halving_doubling", Kind::allreduce, false, plan_halving_doubling_allreduce},
    {"recursive_doubling", Kind::allreduce, false, plan_recursive_doubling_allreduce},
    {"one_shot", Kind::allreduce, true, plan_one_shot_allreduce},
    {"two_shot", Kind::allreduce, true, plan_two_shot_allreduce},
    {"direct", Kind::allgather, true, plan_direct_allgather},
    {"binomial_tree", Kind::broadcast, true, plan_binomial_broadcast},
    {"binomial_tree", Kind::reduce, false, plan_binomial_reduce},
    {"direct", Kind::reduce, true, plan_direct_reduce},
    {"direct", Kind::gather, true, plan_direct_gather},
    {"direct", Kind::scatter, true, plan_direct_scatter},
    {"direct", Kind::reduce_scatter, true, plan_direct_reduce_scatter},
    {"pairwise", Kind::alltoall, true, plan_pairwise_alltoall},
    {"direct", Kind::send, true, plan_send},
    {"direct", Kind::recv, true, plan_recv},
    {"dissemination", Kind::barrier, true, plan_dissemination_barrier},
};

}  // namespace

std::span<const Algorithm> algorithms() { return kAlgorithms; }

const Algorithm& find_algorithm(CollectiveKind kind, std::string_view name) {
  std::string names;
  for (const auto& algorithm : kAlgorithms) {
    if (algorithm.kind != kind) continue;
    if (algorithm.name == name) return algorithm;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", algorithm.name);
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("\"{}\" is no algorithm for {}; there are: {}", name, to_string(kind), names));
}

int64_t input_count(const Problem& problem) {
  const auto sum = std::accumulate(problem.counts.begin(), problem.counts.end(), int64_t{0});
  const auto own = static_cast<size_t>(problem.rank);
  switch (problem.kind) {
    case Kind::barrier:
      return 0;
    case Kind::allgather:
    case Kind::gather:
      return problem.counts[own];
    case Kind::scatter:
      return problem.rank == problem.root ? sum : 0;
    case Kind::recv:
      return 0;
    default:
      return sum;
  }
}

int64_t output_count(const Problem& problem) {
  const auto sum = std::accumulate(problem.counts.begin(), problem.counts.end(), int64_t{0});
  const auto own = static_cast<size_t>(problem.rank);
  const bool is_root = problem.rank == problem.root;
  switch (problem.kind) {
    case Kind::barrier:
    case Kind::send:
      return 0;
    case Kind::gather:
    case Kind::reduce:
      return is_root ? sum : 0;
    case Kind::scatter:
    case Kind::reduce_scatter:
      return problem.counts[own];
    case Kind::alltoall:
      return std::accumulate(problem.recv_counts.begin(), problem.recv_counts.end(), int64_t{0});
    default:
      return sum;
  }
}

}  // namespace tutti
