#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

/// An ordered list of ranks, and this rank's index in it. Larger algorithms are built from the
/// functions below. Each function takes the same number of rounds on every member.
struct Group {
  std::vector<int> ranks;
  int self = 0;

  int size() const { return static_cast<int>(ranks.size()); }
  /// Returns the rank at an index, modulo the size.
  int at(int place) const { return ranks[wrapped(place)]; }
  size_t wrapped(int place) const {
    return static_cast<size_t>((place % size() + size()) % size());
  }
};
/// For Sums::scaled, returns the power of two that keeps a sum of `operands` f16 numbers in range;
/// otherwise 1. Dividing by it is exact except for very small numbers. The bits that these lose
/// would not be in the mean either.
int divisor_of(Sums sums, int operands);
/// Returns the group of all ranks in order.
Group everyone(const Problem& problem);

/// Every member sends ranges[j] of slot `from` to member j, the owner of the range. The owner
/// reduces all members' operands, its own included, in the group's order into output at `target`.
/// The result is divided by `divisor`. If there are fewer ranges than members, the remaining
/// members own nothing. Takes one round.
void direct_reduce_scatter(Builder& builder, const Group& group, std::span<const Range> ranges,
                           Slot from, int64_t target, int divisor = 1);
/// Member j, the owner of output[ranges[j]], sends it to all others. Takes one round.
void direct_allgather(Builder& builder, const Group& group, std::span<const Range> ranges);

/// Reduces around the ring. At the end member i has chunks[i], reduced over all members' slot
/// `from`, in output at `target`. There is one chunk per member. Only the last round writes to the
/// output. Partial sums alternate between two buffers: one is sent while the other receives. Takes
/// size - 1 rounds.
void ring_reduce_scatter(Builder& builder, const Group& group, std::span<const Range> chunks,
                         Slot from, int64_t target);
/// Gathers around the ring: output[chunks[i]] of each member i reaches all members. `own` is the
/// range from which this rank's chunk is sent. Takes size - 1 rounds.
void ring_allgather(Builder& builder, const Group& group, std::span<const Range> chunks, Slot from,
                    Range own);

/// Broadcasts from the member at index `root`, which sends from slot `from`, to the output of all
/// members. Takes ceil(log2(size)) rounds.
void binomial_broadcast(Builder& builder, const Group& group, int root, Slot from, Range range);

}  // namespace tutti
