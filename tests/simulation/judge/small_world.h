#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/simulation/contents.h"
#include "tests/simulation/judge/invariants.h"
#include "tests/simulation/text.h"
#include "tutti/base/error.h"

namespace tutti::simulation {

/// A case and the record of a run of it without errors. The operations of the n-th action were
/// submitted at 100 n, ended 50 later and have the model's results. Tests change one thing.
class SmallWorld {
 public:
  explicit SmallWorld(std::string_view text) : from_(parse(text)) {
    record_.ranks.resize(from_.ranks.size());
    size_t most = 0;
    for (const auto& scripts : from_.ranks)
      if (!scripts.empty()) most = std::max(most, scripts.front().size());
    for (size_t action = 0; action < most; ++action)
      for (size_t rank = 0; rank < from_.ranks.size(); ++rank)
        if (!from_.ranks[rank].empty() && action < from_.ranks[rank].front().size())
          add(rank, action);
    const Oracle oracle(from_, record_);
    for (auto& operation : record_.operations)
      if (const auto* meeting = oracle.meeting_of(operation);
          meeting != nullptr && meeting->is_complete() && oracle.disagreement(*meeting).empty())
        operation.output = oracle.result(*meeting, operation.site.rank);
    for (auto& state : record_.ranks) {
      state.phases = {{0, 1}, {1, 4}, {4, 6}};
      state.closing = state.farewell = 5000;
      state.over = 5010;
    }
    count_all(oracle);
  }
  OperationRecord& operation(int rank, const std::string& name, int use = 0) {
    for (auto& one : record_.operations)
      if (one.site.rank == rank && one.name == name && use-- == 0) return one;
    throw std::out_of_range(name);
  }
  RankRecord& rank(int number) { return record_.ranks.at(static_cast<size_t>(number)); }
  OperationRecord& fail(int rank, const std::string& name, ErrorCode code, int about, Micros at,
                        std::string text = "it failed") {
    auto& one = operation(rank, name);
    one.error_code = static_cast<int>(code);
    one.error_rank = about;
    one.error_text = std::move(text);
    one.ended = at;
    one.output.clear();
    return one;
  }
  Case& from() { return from_; }
  Record& record() { return record_; }
  /// Returns what one invariant finds.
  Findings find(void (*invariant)(const View&, Findings&)) const {
    Findings findings;
    invariant(View(from_, record_), findings);
    return findings;
  }
  Findings find_all() const { return check(from_, record_); }

 private:
  void count_all(const Oracle& oracle) {
    for (const auto& one : record_.operations) {
      const Operation* asked = oracle.operation_of(one);
      if (asked == nullptr) continue;
      auto& state = record_.ranks[static_cast<size_t>(one.site.rank)];
      const bool is_pair =
          asked->kind == CollectiveKind::send || asked->kind == CollectiveKind::recv;
      if (from_.world.serves_blocking && oracle.action_of(one).kind == Action::Kind::block)
        ++(is_pair ? state.pairs_counted : state.blocking_counted);
      else if (asked->kind == CollectiveKind::allreduce)
        ++state.allreduces_counted;
    }
  }
  void add(size_t rank, size_t place) {
    const Action& action = from_.ranks[rank].front()[place];
    const auto submitted = static_cast<Micros>(place) * 100;
    OperationRecord next;
    next.site = {static_cast<int>(rank), 0, static_cast<int>(place), 0};
    next.submitted = submitted;
    next.ended = submitted + 50;
    next.callbacks = action.kind == Action::Kind::submit ? 1 : 0;
    if (action.kind == Action::Kind::join) {
      next.name = "join";
      record_.operations.push_back(next);
    }
    for (const auto& operation : action.operations) {
      next.name = operation.name;
      record_.operations.push_back(next);
      ++next.site.operation;
    }
  }
  Case from_;
  Record record_;
};

}  // namespace tutti::simulation
