#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

/// Some ranks in an order, and the own place among them. The sections below are what larger
/// algorithms are made of; each takes the same number of rounds on every member.
struct Group {
  std::vector<int> ranks;
  int self = 0;

  int size() const { return static_cast<int>(ranks.size()); }
  /// The rank at a place, counted around.
  int at(int place) const { return ranks[wrapped(place)]; }
  size_t wrapped(int place) const {
    return static_cast<size_t>((place % size() + size()) % size());
  }
};
/// The power of two that keeps a sum of `operands` f16 numbers in its range. Dividing by it is
/// exact except for small numbers, which lose no more than they would in the mean.
int divisor_of(Sums sums, int operands);
/// All ranks in order.
Group everyone(const Problem& problem);

/// Every member sends ranges[j] of `from` to member j, the owner, which reduces them in the group's
/// order (its own operand included) into output at `target`. Fewer ranges than members: the rest
/// own nothing. Results are divided by `divisor`. One round.
void direct_reduce_scatter(Builder& builder, const Group& group, std::span<const Range> ranges,
                           Slot from, int64_t target, int divisor = 1);
/// Member j, the owner of output[ranges[j]], sends it to all others. One round.
void direct_allgather(Builder& builder, const Group& group, std::span<const Range> ranges);

/// Around the ring: member i ends with chunks[i] of all members' `from` reduced in output at
/// `target`, which only the last round writes. Partial sums travel through two buffers in turn: one
/// is sent while the other receives. size - 1 rounds; as many chunks as members.
void ring_reduce_scatter(Builder& builder, const Group& group, std::span<const Range> chunks,
                         Slot from, int64_t target);
/// Around the ring: output[chunks[i]] of each member i reaches all. `own` is where the own chunk is
/// sent from. size - 1 rounds.
void ring_allgather(Builder& builder, const Group& group, std::span<const Range> chunks, Slot from,
                    Range own);

/// From the member at place `root`, which sends from slot `from`, to output of all.
/// ceil(log2(size)) rounds.
void binomial_broadcast(Builder& builder, const Group& group, int root, Slot from, Range range);

}  // namespace tutti
