#include "tests/collectives/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tutti/base/check.h"

namespace tutti {

namespace {

// One element as a symbol: the element of the ranks' inputs that it combines, and those ranks.
struct Cell {
  int64_t index = 0;
  uint64_t ranks = 0;       // a bit for each rank; 0: undefined
  uint64_t expression = 0;  // hash of the operations in their order
  int reductions = 0;
  bool operator==(const Cell&) const = default;
};

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b * 0x9e3779b97f4a7c15u)) + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t bit(int rank) { return uint64_t{1} << rank; }
uint64_t all_ranks(int size) { return size == 64 ? ~uint64_t{0} : bit(size) - 1; }

int64_t sum_before(std::span<const int64_t> counts, int rank) {
  int64_t sum = 0;
  for (int i = 0; i < rank; ++i) sum += counts[static_cast<size_t>(i)];
  return sum;
}

// Returns the model of `rank`'s output: for each element, the inputs that it combines.
std::vector<Cell> expected_output(std::span<const Problem> problems, int rank) {
  using enum CollectiveKind;
  const auto& problem = problems[static_cast<size_t>(rank)];
  const int64_t total = output_count(problem);
  std::vector<Cell> result;
  const auto append = [&](int64_t begin, int64_t count, uint64_t ranks) {
    for (int64_t i = 0; i < count; ++i) result.push_back({begin + i, ranks});
  };
  switch (problem.kind) {
    case allreduce:
    case reduce:
      append(0, total, all_ranks(problem.size));
      break;
    case reduce_scatter:
      append(sum_before(problem.counts, rank), total, all_ranks(problem.size));
      break;
    case broadcast:
    case recv:
      append(0, total, bit(problem.root));
      break;
    case scatter:
      append(sum_before(problem.counts, rank), total, bit(problem.root));
      break;
    case allgather:
    case gather:
      for (int peer = 0; total > 0 && peer < problem.size; ++peer)
        append(0, problem.counts[static_cast<size_t>(peer)], bit(peer));
      break;
    case alltoall:
      for (int peer = 0; peer < problem.size; ++peer)
        append(sum_before(problems[static_cast<size_t>(peer)].counts, rank),
               problem.recv_counts[static_cast<size_t>(peer)], bit(peer));
      break;
    case send:
    case barrier:
      break;
  }
  return result;
}

struct Fault {
  std::string text;
};

struct Message {
  std::vector<Cell> cells;
  uint64_t heard;  // the ranks that the sender had heard from when it sent this
};

class Rank {
 public:
  Rank(const Problem& problem, const Schedule& schedule)
      : problem_(problem), schedule_(schedule), heard_(bit(problem.rank)) {
    auto& input = slots_[0];
    for (int64_t i = 0; i < input_count(problem); ++i)
      input.push_back({i, bit(problem.rank),
                       mix(static_cast<uint64_t>(problem.rank) + 1, static_cast<uint64_t>(i)), 0});
    if (problem.in_place)
      input.resize(static_cast<size_t>(std::max(input_count(problem), output_count(problem))));
    else
      slots_[1].resize(static_cast<size_t>(output_count(problem)));
    slots_[2].resize(static_cast<size_t>(schedule.scratch));
  }

  /// Returns the steps of `round`, which is the next round or a later one.
  std::span<const Step> steps_of(int round) {
    const size_t begin = next_;
    const auto& steps = schedule_.steps;
    while (next_ < steps.size() && steps[next_].round == round) ++next_;
    require(next_ == steps.size() || steps[next_].round > round, round, "rounds do not ascend");
    return {steps.data() + begin, next_ - begin};
  }
  bool is_done() const { return next_ == schedule_.steps.size(); }

  void require_apart(std::span<const Step> steps) const {
    for (const auto& target : steps) {
      if (target.action != Action::recv) continue;
      for (const auto& other : steps) {
        if (&other == &target) continue;
        const bool is_clash = (other.action == Action::send &&
                               overlap(other.from, other.source, target.to, target.target)) ||
                              (other.action == Action::recv &&
                               overlap(other.to, other.target, target.to, target.target));
        require(!is_clash, target.round, "memory that a message uses is received into");
      }
    }
  }

  std::vector<Cell> read(int round, Slot slot, Range range) const {
    const auto& cells = slots_[place(slot)];
    require(is_within(cells, range), round, "a source is out of bounds");
    std::vector<Cell> result(cells.begin() + range.begin, cells.begin() + range.end());
    for (const auto& cell : result) require(cell.ranks != 0, round, "something undefined is read");
    return result;
  }

  void write(int round, Slot slot, Range range, const std::vector<Cell>& values) {
    auto& cells = slots_[place(slot)];
    require(slot != Slot::input, round, "input is written");
    require(is_within(cells, range), round, "a target is out of bounds");
    require(static_cast<int64_t>(values.size()) == range.count, round,
            fmt::format("{} elements come for {}", values.size(), range.count));
    std::copy(values.begin(), values.end(), cells.begin() + range.begin);
  }

  void reduce(const Step& step) {
    const auto& [count, own, begin, stride] = step.operands;
    require(own >= 0 && own < count, step.round, "the own operand is not among the operands");
    std::vector<Cell> result;
    int64_t other = begin;
    for (int i = 0; i < count; ++i) {
      std::vector<Cell> operand;
      if (i == own) {
        operand = read(step.round, step.from, step.source);
      } else {
        operand = read(step.round, Slot::scratch, {other, step.source.count});
        other += stride;
      }
      if (schedule_.scales_at_owner)
        for (const auto& cell : operand)
          require(count == problem_.size && cell.ranks == bit(i) && cell.reductions == 0,
                  step.round, "a reduction is not once, of all ranks in rank order");
      if (i == 0) {
        result = operand;
        continue;
      }
      for (size_t j = 0; j < result.size(); ++j) {
        require(result[j].index == operand[j].index, step.round,
                "different elements are reduced together");
        require((result[j].ranks & operand[j].ranks) == 0, step.round,
                "an element is reduced twice");
        result[j].ranks |= operand[j].ranks;
        result[j].expression = mix(result[j].expression, operand[j].expression);
      }
    }
    for (auto& cell : result) ++cell.reductions;
    write(step.round, step.to, step.target, result);
  }

  void require_output(const std::vector<Cell>& expected) const {
    const auto& output = slots_[place(Slot::output)];
    for (size_t i = 0; i < expected.size(); ++i) {
      require(output[i].ranks != 0, -1, fmt::format("output {} is undefined", i));
      require(output[i].index == expected[i].index && output[i].ranks == expected[i].ranks, -1,
              fmt::format("output {} is element {} of ranks {:b}, not element {} of ranks {:b}", i,
                          output[i].index, output[i].ranks, expected[i].index, expected[i].ranks));
      require(!schedule_.scales_at_owner || output[i].reductions == 1, -1,
              fmt::format("output {} was not reduced", i));
    }
    const bool needs_all = reduces(problem_.kind) || problem_.kind == CollectiveKind::barrier;
    require(!needs_all || heard_ == all_ranks(problem_.size), -1,
            fmt::format("heard only from ranks {:b}", heard_));
  }

  /// Checks the promise of Schedule::heard_all, between the messages of a round and its other
  /// steps.
  void require_heard(std::span<const Step> steps, int round) const {
    if (round > schedule_.heard_all) return;
    for (const auto& step : steps) {
      const bool is_early = step.action == Action::recv ||
                            (round < schedule_.heard_all &&
                             (step.action == Action::reduce || step.action == Action::copy));
      require(!is_early || step.to != Slot::output, round,
              "output is written before all ranks were heard");
    }
    require(round < schedule_.heard_all || heard_ == all_ranks(problem_.size), round,
            fmt::format("heard only from ranks {:b}", heard_));
  }

  const Cell& output(size_t i) const { return slots_[place(Slot::output)][i]; }
  uint64_t heard() const { return heard_; }
  void hear(uint64_t ranks) { heard_ |= ranks; }

  void require(bool condition, int round, const std::string& wrong) const {
    if (condition) return;
    throw Fault{round < 0 ? fmt::format("rank {} of {}: {}", problem_.rank, problem_.size, wrong)
                          : fmt::format("rank {} of {}, round {}: {}", problem_.rank, problem_.size,
                                        round, wrong)};
  }

 private:
  size_t place(Slot slot) const {
    if (slot == Slot::scratch) return 2;
    return slot == Slot::output && !problem_.in_place ? 1 : 0;
  }
  bool overlap(Slot a, Range x, Slot b, Range y) const {
    return place(a) == place(b) && x.begin < y.end() && y.begin < x.end() && x.count > 0 &&
           y.count > 0;
  }
  static bool is_within(const std::vector<Cell>& cells, Range range) {
    return range.begin >= 0 && range.count >= 0 &&
           range.end() <= static_cast<int64_t>(cells.size());
  }

  const Problem& problem_;
  const Schedule& schedule_;
  std::vector<Cell> slots_[3];
  size_t next_ = 0;
  uint64_t heard_;
};

void run_round(std::vector<Rank>& ranks, int round, Simulation& simulation) {
  std::vector<std::span<const Step>> steps;
  std::map<std::pair<int, int>, Message> messages;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto from = static_cast<int>(i);
    steps.push_back(ranks[i].steps_of(round));
    ranks[i].require_apart(steps[i]);
    for (const auto& step : steps[i]) {
      if (step.action != Action::send) continue;
      ranks[i].require(
          step.peer >= 0 && step.peer < static_cast<int>(ranks.size()) && step.peer != from, round,
          fmt::format("sends to rank {}", step.peer));
      const auto [message, is_new] =
          messages.emplace(std::pair(from, step.peer),
                           Message{ranks[i].read(round, step.from, step.source), ranks[i].heard()});
      ranks[i].require(is_new, round, fmt::format("sends to rank {} twice", step.peer));
      simulation.sent[i][static_cast<size_t>(step.peer)] += step.source.count;
    }
  }
  if (!messages.empty()) simulation.rounds = round + 1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    for (const auto& step : steps[i]) {
      if (step.action != Action::recv) continue;
      const auto message = messages.extract({step.peer, static_cast<int>(i)});
      ranks[i].require(!message.empty(), round,
                       fmt::format("rank {} sends nothing to receive", step.peer));
      ranks[i].write(round, step.to, step.target, message.mapped().cells);
      ranks[i].hear(message.mapped().heard);
    }
  }
  for (const auto& [pair, message] : messages)
    throw Fault{fmt::format("round {}: rank {} does not receive what rank {} sends", round,
                            pair.second, pair.first)};
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].require_heard(steps[i], round);
    for (const auto& step : steps[i]) {
      if (step.action == Action::reduce) ranks[i].reduce(step);
      if (step.action == Action::copy)
        ranks[i].write(round, step.to, step.target, ranks[i].read(round, step.from, step.source));
    }
  }
}

// Checks that an element which combines all ranks is the result of the same operations on every
// rank.
void require_same_bits(std::span<const Problem> problems, const std::vector<Rank>& ranks) {
  if (problems[0].kind != CollectiveKind::allreduce) return;
  for (const auto& rank : ranks)
    for (int64_t i = 0; i < output_count(problems[0]); ++i)
      rank.require(rank.output(static_cast<size_t>(i)).expression ==
                       ranks[0].output(static_cast<size_t>(i)).expression,
                   -1, fmt::format("output {} has other bits than rank 0's", i));
}

}  // namespace

Simulation simulate(std::span<const Problem> problems, std::span<const Schedule> schedules) {
  TUTTI_CHECK(!problems.empty() && problems.size() <= 64 && problems.size() == schedules.size());
  Simulation simulation;
  simulation.sent.assign(problems.size(), std::vector<int64_t>(problems.size()));
  std::vector<Rank> ranks;
  for (size_t i = 0; i < problems.size(); ++i) ranks.emplace_back(problems[i], schedules[i]);
  try {
    const auto is_done = [](const Rank& rank) { return rank.is_done(); };
    for (int round = 0; !std::ranges::all_of(ranks, is_done); ++round)
      run_round(ranks, round, simulation);
    for (size_t i = 0; i < ranks.size(); ++i)
      ranks[i].require_output(expected_output(problems, static_cast<int>(i)));
    require_same_bits(problems, ranks);
  } catch (const Fault& fault) {
    simulation.fault = fault.text;
  }
  return simulation;
}

}  // namespace tutti
