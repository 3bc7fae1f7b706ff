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

/// Returns a range split into `parts` consecutive ranges whose lengths differ by at most one
/// element.
std::vector<Range> cut(Range range, int parts);
/// Returns consecutive ranges of these lengths, from 0 on.
std::vector<Range> consecutive(std::span<const int64_t> counts);
int64_t longest(std::span<const Range> ranges);

/// Return the operands of a reduction of two operands. One operand is in scratch at `begin`: the
/// left one for left_from(), the right one for right_from().
constexpr Operands left_from(int64_t begin) { return {2, 1, begin, 0}; }
constexpr Operands right_from(int64_t begin) { return {2, 0, begin, 0}; }

/// Builds a Schedule round by round.
class Builder {
 public:
  void send(int peer, Slot from, Range source);
  void recv(int peer, Slot to, Range target);
  void copy(Slot from, Range source, Slot to, int64_t target);
  /// Adds a reduction whose result is divided by `divisor`: 1, or a number that keeps a sum of f16
  /// from overflowing.
  void reduce(Slot from, Range source, Operands operands, Slot to, int64_t target, int divisor = 1);
  /// Starts the next round. All ranks count the same rounds, including rounds in which they do
  /// nothing.
  void next_round(int rounds = 1) { round_ += rounds; }
  /// Reserves elements of scratch; returns their offset.
  int64_t scratch(int64_t count);
  Schedule take() { return std::move(schedule_); }

 private:
  Schedule schedule_;
  int round_ = 0;
};

/// Returns the schedule of a communicator of one rank: input is copied to output.
Schedule copy_through(const Problem& problem);

/// The ranks of each host. Hosts are numbered by first appearance. Members are in ascending order.
class HostMap {
 public:
  explicit HostMap(const Problem& problem);
  int count() const { return static_cast<int>(members_.size()); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  /// Returns the index of a rank among the members of its host.
  int index_of(int rank) const { return index_of_[static_cast<size_t>(rank)]; }
  const std::vector<int>& members(int host) const { return members_[static_cast<size_t>(host)]; }
  int least_members() const;
  int most_members() const;
  /// Deals the ranks of other hosts to the members of `host` in turn. Returns, for each member, the
  /// ranks that were dealt to it.
  std::vector<std::vector<int>> dealt(int host) const;
  /// Returns the largest number of ranks that are dealt to any member of any host.
  int most_dealt() const;
  /// Returns the member of `host` to which this rank of another host was dealt.
  int dealt_to(int host, int rank) const;

 private:
  std::vector<int> host_of_, index_of_;
  std::vector<std::vector<int>> members_;
};

}  // namespace tutti
