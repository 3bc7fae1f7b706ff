// A plain computation of the results of a simulated backend's operations, and a check that the
// meeting ranks agree.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/simulation/world/sim_backend.h"
#include "tutti/kernels/reduce.h"

namespace tutti::simulation {

namespace {

int64_t sum_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

bool is_rooted(CollectiveKind kind) {
  return kind == CollectiveKind::broadcast || kind == CollectiveKind::reduce ||
         kind == CollectiveKind::gather || kind == CollectiveKind::scatter;
}

}  // namespace

std::string SimNet::disagreement(const Meeting& meeting) const {
  const auto describe = [&](const SimOperation& operation) {
    const auto& said = operation.collective_;
    auto text = fmt::format("\"{}\" {}", operation.name_, operation.launch_.layout);
    if (meeting.is_pair)
      return text + fmt::format(" {}[{}]", to_string(said.dtype), operation.send_counts_[0]);
    text += fmt::format(" {}", to_string(said.kind));
    if (said.kind == CollectiveKind::barrier) return text;
    text += fmt::format(" {}", to_string(said.dtype));
    if (said.kind == CollectiveKind::alltoall)
      text += fmt::format(" longest {}", said.longest);
    else
      text += fmt::format(" [{}]", fmt::join(operation.send_counts_, ","));
    if (reduces(said.kind)) text += fmt::format(" {}", to_string(said.op));
    if (is_rooted(said.kind)) text += fmt::format(" root {}", said.root);
    return text;
  };
  const SimOperation* first = nullptr;
  for (const auto* operation : meeting.operations) {
    if (operation == nullptr) continue;
    if (first == nullptr) first = operation;
    const auto one = describe(*first), other = describe(*operation);
    if (one == other) continue;
    return fmt::format("rank {} called {}, but rank {} called {}. Nothing was changed.",
                       first->end_->rank_, one, operation->end_->rank_, other);
  }
  return {};
}

void SimNet::compute(Meeting& meeting) {
  const auto& all = meeting.operations;
  const auto bytes_of = [](const SimOperation& operation, int64_t count) {
    return place(static_cast<int>(count * size_of(operation.collective_.dtype)));
  };
  const auto copy = [&](SimOperation& to, const SimOperation& from, int64_t begin, int64_t count) {
    if (count == 0) return;
    const auto* first = from.input() + begin * size_of(from.collective_.dtype);
    to.result_.insert(to.result_.end(), first, first + bytes_of(from, count));
  };
  if (meeting.is_pair) {
    SimOperation *sender = nullptr, *receiver = nullptr;
    for (auto* one : all)
      if (one != nullptr) (one->collective_.kind == CollectiveKind::send ? sender : receiver) = one;
    copy(*receiver, *sender, 0, sender->send_counts_[0]);
    return;
  }
  const auto before = [](const std::vector<int64_t>& counts, size_t rank) {
    return sum_of(std::span(counts).first(rank));
  };
  const auto& first = *all[0];
  const auto kind = first.collective_.kind;
  const auto root = place(first.collective_.root);
  std::vector<std::byte> reduced;
  if (reduces(kind)) {
    const int64_t count = sum_of(first.send_counts_);
    std::vector<const std::byte*> inputs;
    for (const auto* one : all) inputs.push_back(one->input());
    reduced.resize(bytes_of(first, count));
    auto op = first.collective_.op;
    auto scale = first.collective_.scale;
    if (op == ReduceOp::average && first.launch_.contributors > 0) {
      op = ReduceOp::sum;
      scale.divisor *= first.launch_.contributors;
    }
    if (count > 0)
      reduce_reference(first.collective_.dtype, op, reduced.data(), inputs, count, scale);
  }
  for (size_t rank = 0; rank < all.size(); ++rank) {
    auto& mine = *all[rank];
    switch (kind) {
      case CollectiveKind::allreduce:
        mine.result_ = reduced;
        break;
      case CollectiveKind::reduce:
        if (rank == root) mine.result_ = reduced;
        break;
      case CollectiveKind::reduce_scatter: {
        const auto begin = reduced.begin() + static_cast<std::ptrdiff_t>(
                                                 bytes_of(mine, before(mine.send_counts_, rank)));
        mine.result_.assign(
            begin, begin + static_cast<std::ptrdiff_t>(bytes_of(mine, mine.send_counts_[rank])));
        break;
      }
      case CollectiveKind::broadcast:
        copy(mine, *all[root], 0, mine.send_counts_[0]);
        break;
      case CollectiveKind::allgather:
      case CollectiveKind::gather:
        if (kind == CollectiveKind::gather && rank != root) break;
        for (size_t from = 0; from < all.size(); ++from)
          copy(mine, *all[from], 0, all[from]->send_counts_[from]);
        break;
      case CollectiveKind::scatter:
        copy(mine, *all[root], before(all[root]->send_counts_, rank),
             all[root]->send_counts_[rank]);
        break;
      case CollectiveKind::alltoall:
        for (auto* from : all)
          copy(mine, *from, before(from->send_counts_, rank), from->send_counts_[rank]);
        break;
      case CollectiveKind::barrier:
      case CollectiveKind::send:
      case CollectiveKind::recv:
        break;
    }
  }
}

}  // namespace tutti::simulation
