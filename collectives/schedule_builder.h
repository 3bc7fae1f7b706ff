#pragma once

#include <numeric>
#include <span>
#include <vector>

#include "tutti/collectives/schedule.h"

namespace tutti {

/// Writes a schedule down, round after round.
class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(const Problem& problem) : problem_(problem) {}

  /// Steps written from here on belong to the next round.
  ScheduleBuilder& next_round() { return ++round_, *this; }
  void send(int peer, Slot from, Range source) {
    add({round_, Action::send, peer, from, from, source, source});
  }
  void recv(int peer, Slot to, Range target) {
    add({round_, Action::recv, peer, to, to, target, target});
  }
  void copy(Slot from, Range source, Slot to, int64_t target) {
    add({round_, Action::copy, -1, from, to, source, {target, source.count}});
  }
  /// output[range] = op(output[range], scratch[begin...]); with `left`, the scratch is the left
  /// operand.
  void reduce(Range range, int64_t scratch, bool left) {
    add({round_,
         left ? Action::reduce_left : Action::reduce,
         -1,
         Slot::scratch,
         Slot::output,
         {scratch, range.count},
         range});
  }
  /// output[target...] = op over all ranks in order; the others' operands lie in scratch.
  void reduce_ranks(Range source, int64_t target) {
    Step step{round_, Action::reduce_ranks,  -1, Slot::input, Slot::output,
              source, {target, source.count}};
    step.stride = source.count;
    add(step);
    schedule_.scales_at_owner = true;
  }
  /// The input, if it is not the output already, copied to `target` of the output in a round of its
  /// own.
  void bring(Range source, int64_t target) {
    if (!problem_.in_place && source.count > 0) copy(Slot::input, source, Slot::output, target);
    next_round();
  }
  void need_scratch(int64_t count) { schedule_.scratch = std::max(schedule_.scratch, count); }
  Schedule take() { return std::move(schedule_); }

 private:
  void add(const Step& step) { schedule_.steps.push_back(step); }
  const Problem& problem_;
  Schedule schedule_;
  int round_ = 0;
};

/// Parts of a vector that lie one after another.
class Partition {
 public:
  /// `count` elements in `parts` parts that differ by at most one element.
  Partition(int64_t count, int parts) {
    for (int i = 0; i <= parts; ++i)
      begins_.push_back(count / parts * i + std::min<int64_t>(i, count % parts));
  }
  explicit Partition(std::span<const int64_t> counts) : begins_{0} {
    for (const int64_t count : counts) begins_.push_back(begins_.back() + count);
  }
  Range operator[](int part) const { return range(part, part + 1); }
  /// Parts [first, last).
  Range range(int first, int last) const {
    const auto begin = begins_[static_cast<size_t>(first)];
    return {begin, begins_[static_cast<size_t>(last)] - begin};
  }
  int64_t total() const { return begins_.back(); }

 private:
  std::vector<int64_t> begins_;
};

}  // namespace tutti
