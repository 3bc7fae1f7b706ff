#include "tests/simulation/judge/shrink.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "tests/simulation/fields.h"

namespace tutti::simulation {

namespace {

bool is_of_pair(const Operation& operation) {
  return operation.kind == CollectiveKind::send || operation.kind == CollectiveKind::recv;
}

// Leaves out the operations for which `goes` is true, and the actions that then have none left.
template <class Goes>
Case without_operations(Case from, Goes goes) {
  for (auto& scripts : from.ranks)
    for (auto& script : scripts)
      std::erase_if(script, [&](Action& action) {
        return std::erase_if(action.operations, goes) > 0 && action.operations.empty();
      });
  return from;
}

class Shrinker {
 public:
  Shrinker(const Case& from, const std::function<bool(const Case&)>& fails, int most_runs)
      : best_(from), fails_(fails), most_runs_(most_runs) {}

  Shrunk run() {
    bool gets_smaller = true;
    while (gets_smaller && runs_ < most_runs_) {
      gets_smaller = drop_faults();
      gets_smaller |= drop_ranks();
      gets_smaller |= drop_scripts();
      gets_smaller |= drop_steps();
      gets_smaller |= drop_names();
      gets_smaller |= drop_actions();
      gets_smaller |= drop_operations();
      gets_smaller |= lower_world();
      gets_smaller |= lower_faults();
      gets_smaller |= lower_operations();
      gets_smaller |= lower_times();
    }
    return {std::move(best_), runs_};
  }

 private:
  // Keeps `smaller` if it differs from the best case and still fails.
  bool keep(Case smaller) {
    if (smaller == best_ || runs_ >= most_runs_) return false;
    ++runs_;
    if (!fails_(smaller)) return false;
    best_ = std::move(smaller);
    return true;
  }

  bool drop_faults() {
    Case none = best_;
    none.faults.clear();
    bool any = keep(std::move(none));
    for (size_t i = best_.faults.size(); i-- > 0;) {
      Case smaller = best_;
      smaller.faults.erase(smaller.faults.begin() + static_cast<int64_t>(i));
      any |= keep(std::move(smaller));
    }
    return any;
  }

  bool drop_ranks() {
    bool any = false;
    for (int rank = best_.world.size - 1; rank >= 0 && best_.world.size > 2; --rank)
      any |= keep(without_rank(best_, rank));
    return any;
  }

  bool drop_scripts() {
    Case smaller = best_;
    for (auto& scripts : smaller.ranks)
      if (scripts.size() > 1) scripts.resize(1);
    if (keep(std::move(smaller))) return true;
    smaller = best_;
    for (auto& scripts : smaller.ranks)
      if (scripts.size() > 1) scripts.erase(scripts.begin());
    return keep(std::move(smaller));
  }

  // Leaves out whole steps. All operations of a step have the same contents seed.
  bool drop_steps() {
    std::set<uint32_t> steps;
    for_each_operation([&](const Operation& operation) { steps.insert(operation.contents); });
    bool any = false;
    for (auto step = steps.rbegin(); step != steps.rend(); ++step)
      any |= keep(without_operations(
          best_, [&](const Operation& operation) { return operation.contents == *step; }));
    return any;
  }

  bool drop_names() {
    std::set<std::string> names;
    for_each_operation([&](const Operation& operation) { names.insert(operation.name); });
    bool any = false;
    for (const auto& name : names)
      any |= keep(without_operations(
          best_, [&](const Operation& operation) { return operation.name == name; }));
    return any;
  }

  bool drop_actions() {
    bool any = false;
    for (size_t rank = 0; rank < best_.ranks.size(); ++rank)
      for (size_t script = 0; script < best_.ranks[rank].size(); ++script)
        for (size_t i = best_.ranks[rank][script].size(); i-- > 0;) {
          Case smaller = best_;
          auto& actions = smaller.ranks[rank][script];
          actions.erase(actions.begin() + static_cast<int64_t>(i));
          any |= keep(std::move(smaller));
        }
    return any;
  }

  bool drop_operations() {
    bool any = false;
    for (size_t rank = 0; rank < best_.ranks.size(); ++rank)
      for (size_t script = 0; script < best_.ranks[rank].size(); ++script)
        for (size_t action = 0; action < best_.ranks[rank][script].size(); ++action)
          for (size_t i = best_.ranks[rank][script][action].operations.size(); i-- > 1;) {
            Case smaller = best_;
            auto& operations = smaller.ranks[rank][script][action].operations;
            operations.erase(operations.begin() + static_cast<int64_t>(i));
            any |= keep(std::move(smaller));
          }
    return any;
  }

  bool lower_world() {
    // Sets each field to its default, one by one, except the size.
    std::vector<int64_t> usual;
    const World defaults;
    for_each_field(defaults,
                   [&](const char*, auto& field) { usual.push_back(static_cast<int64_t>(field)); });
    bool any = false;
    for (size_t place = 1; place < usual.size(); ++place) {
      Case smaller = best_;
      size_t i = 0;
      for_each_field(smaller.world, [&](const char*, auto& field) {
        // A finding keeps its tier.
        const auto* at = static_cast<const void*>(&field);
        if (i++ == place && at != &smaller.world.over_streams && at != &smaller.world.over_memory)
          field = static_cast<std::remove_reference_t<decltype(field)>>(usual[place]);
      });
      any |= keep(std::move(smaller));
    }
    return any;
  }

  bool lower_faults() {
    bool any = false;
    for (size_t fault = 0; fault < best_.faults.size(); ++fault)
      for (size_t place = 2; place < 6; ++place)
        for (const bool to_zero : {true, false}) {
          Case smaller = best_;
          size_t i = 0;
          for_each_field(smaller.faults[fault], [&](const char*, auto& field) {
            if (i++ == place && field > 1) field = to_zero ? 0 : field / 2;
          });
          any |= keep(std::move(smaller));
        }
    return any;
  }

  // Gives each name, the same on all ranks, plain types and sizes of one element.
  bool lower_operations() {
    std::set<std::string> names;
    for_each_operation([&](const Operation& operation) { names.insert(operation.name); });
    bool any = false;
    for (const auto& name : names) {
      const auto change = [&](auto change_one) {
        Case smaller = best_;
        for (auto& scripts : smaller.ranks)
          for (auto& script : scripts)
            for (auto& action : script)
              for (auto& operation : action.operations)
                if (operation.name == name) change_one(operation);
        any |= keep(std::move(smaller));
      };
      change([](Operation& operation) { operation.splits.clear(); });
      change([](Operation& operation) { operation.width = 0; });
      change([](Operation& operation) {
        if (operation.splits.empty() && operation.rows > 1) operation.rows = 1;
      });
      change([](Operation& operation) {
        if (operation.splits.empty() && operation.rows > 1) operation.rows /= 2;
      });
      change([](Operation& operation) {
        operation.dtype = DataType::f32;
        if (operation.op > ReduceOp::product) operation.op = ReduceOp::sum;
      });
      change([](Operation& operation) { operation.op = ReduceOp::sum; });
      change([](Operation& operation) {
        if (!is_of_pair(operation)) operation.root = 0;
      });
      change([](Operation& operation) { operation.contents = 0; });
    }
    return any;
  }

  bool lower_times() {
    bool any = false;
    for (size_t rank = 0; rank < best_.ranks.size(); ++rank)
      for (size_t script = 0; script < best_.ranks[rank].size(); ++script)
        for (size_t i = 0; i < best_.ranks[rank][script].size(); ++i) {
          if (best_.ranks[rank][script][i].kind != Action::Kind::pause) continue;
          Case smaller = best_;
          smaller.ranks[rank][script][i].time /= 2;
          any |= keep(std::move(smaller));
        }
    return any;
  }

  template <class Visit>
  void for_each_operation(Visit&& visit) const {
    for (const auto& scripts : best_.ranks)
      for (const auto& script : scripts)
        for (const auto& action : script)
          for (const auto& operation : action.operations) visit(operation);
  }

  Case best_;
  const std::function<bool(const Case&)>& fails_;
  const int most_runs_;
  int runs_ = 0;
};

}  // namespace

Case without_rank(const Case& from, int rank) {
  Case smaller = without_operations(from, [&](const Operation& operation) {
    return is_of_pair(operation) && operation.root == rank;
  });
  const auto move_down = [&](auto& number) {
    if (number > rank) --number;
  };
  --smaller.world.size;
  smaller.ranks.erase(smaller.ranks.begin() + rank);
  for (auto& scripts : smaller.ranks)
    for (auto& script : scripts)
      for (auto& action : script)
        for (auto& operation : action.operations) {
          if (operation.root == rank) operation.root = 0;
          move_down(operation.root);
          if (operation.splits.empty()) continue;
          operation.splits.erase(operation.splits.begin() + rank);
          operation.rows =
              std::accumulate(operation.splits.begin(), operation.splits.end(), int64_t{0});
        }
  std::erase_if(smaller.faults, [&](const Fault& fault) { return fault.rank == rank; });
  for (auto& fault : smaller.faults) {
    move_down(fault.rank);
    move_down(fault.peer);
    if (fault.peer == fault.rank) fault.peer = fault.rank == 0 ? 1 : 0;
    fault.peer = std::min(fault.peer, smaller.world.size - 1);
  }
  return smaller;
}

Shrunk shrink(const Case& from, const std::function<bool(const Case&)>& fails, int most_runs) {
  return Shrinker(from, fails, most_runs).run();
}

}  // namespace tutti::simulation
