#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tutti/collectives/schedule.h"

namespace tutti {

/// An element of a slot.
struct SlotElement {
  Slot slot = Slot::input;
  int64_t element = 0;
};

/// A range cut into `parts` consecutive ranges whose lengths differ by at most one element.
std::vector<Range> cut(Range range, int parts);
/// Ranges of these lengths, one after another from 0.
std::vector<Range> consecutive(std::span<const int64_t> counts);
int64_t longest(std::span<const Range> ranges);

/// Operands of a reduction of two: the one in scratch at `begin` is the left or the right one.
constexpr Operands left_from(int64_t begin) { return {2, 1, begin, 0}; }
constexpr Operands right_from(int64_t begin) { return {2, 0, begin, 0}; }

/// Writes a Schedule down, round by round.
class Builder {
 public:
  void send(int peer, Slot from, Range source);
  void recv(int peer, Slot to, Range target);
  void copy(Slot from, Range source, Slot to, int64_t target);
  /// The result is divided by `divisor`: 1, or a number that keeps a sum of f16 from overflowing.
  void reduce(Slot from, Range source, Operands operands, Slot to, int64_t target, int divisor = 1);
  /// What follows belongs to the next round. Ranks count rounds alike, also those in which they do
  /// nothing.
  void next_round(int rounds = 1) { round_ += rounds; }
  /// Reserves elements of scratch; returns where they begin.
  int64_t scratch(int64_t count);
  Schedule take() { return std::move(schedule_); }

 private:
  Schedule schedule_;
  int round_ = 0;
};

/// The whole of one rank alone: input to output.
Schedule copy_through(const Problem& problem);

/// The ranks of each host. Hosts are numbered by first appearance, members ascend.
class HostMap {
 public:
  explicit HostMap(const Problem& problem);
  int count() const { return static_cast<int>(members_.size()); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  /// The place of a rank among the members of its host.
  int index_of(int rank) const { return index_of_[static_cast<size_t>(rank)]; }
  const std::vector<int>& members(int host) const { return members_[static_cast<size_t>(host)]; }
  int least_members() const;
  int most_members() const;
  /// The ranks of all other hosts, dealt to the members of this one in turn: which member here
  /// speaks for which rank there.
  std::vector<std::vector<int>> dealt(int host) const;
  /// The most ranks that any member of any host is dealt.
  int most_dealt() const;
  /// Which member of `host` was dealt this rank of another host.
  int dealt_to(int host, int rank) const;

 private:
  std::vector<int> host_of_, index_of_;
  std::vector<std::vector<int>> members_;
};

}  // namespace tutti
