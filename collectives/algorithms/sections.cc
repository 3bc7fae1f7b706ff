#include "tutti/collectives/algorithms/sections.h"

#include <bit>
#include <numeric>

namespace tutti {

int divisor_of(Sums sums, int operands) {
  if (sums != Sums::scaled) return 1;
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(operands)));
}

Group everyone(const Problem& problem) {
  Group group{std::vector<int>(static_cast<size_t>(problem.size)), problem.rank};
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

void direct_reduce_scatter(Builder& builder, const Group& group, std::span<const Range> ranges,
                           Slot from, int64_t target, int divisor) {
  const auto owners = static_cast<int>(ranges.size());
  const int self = group.self;
  for (int step = 1; step < group.size(); ++step) {
    const auto place = group.wrapped(self + step);  // each member begins with a different owner
    if (place < ranges.size()) builder.send(group.ranks[place], from, ranges[place]);
  }
  if (self < owners) {
    const Range own = ranges[static_cast<size_t>(self)];
    const int64_t begin = builder.scratch((group.size() - 1) * own.count);
    int64_t operand = begin;
    for (int place = 0; place < group.size(); ++place) {
      if (place == self) continue;
      builder.recv(group.at(place), Slot::scratch, {operand, own.count});
      operand += own.count;
    }
    builder.reduce(from, own, {group.size(), self, begin, own.count}, Slot::output, target,
                   divisor);
  }
  builder.next_round();
}

void direct_allgather(Builder& builder, const Group& group, std::span<const Range> ranges) {
  const auto self = static_cast<size_t>(group.self);
  for (int step = 1; step < group.size(); ++step) {
    const auto place = group.wrapped(group.self + step);
    if (self < ranges.size()) builder.send(group.ranks[place], Slot::output, ranges[self]);
    if (place < ranges.size()) builder.recv(group.ranks[place], Slot::output, ranges[place]);
  }
  builder.next_round();
}

void ring_reduce_scatter(Builder& builder, const Group& group, std::span<const Range> chunks,
                         Slot from, int64_t target) {
  const int64_t sums[2] = {builder.scratch(longest(chunks)), builder.scratch(longest(chunks))};
  const int rounds = group.size() - 1;
  for (int k = 0; k < rounds; ++k) {
    const Range sent = chunks[group.wrapped(group.self - 1 - k)];
    const Range next = chunks[group.wrapped(group.self - 2 - k)];
    if (k == 0)
      builder.send(group.at(group.self + 1), from, sent);
    else
      builder.send(group.at(group.self + 1), Slot::scratch, {sums[(k - 1) % 2], sent.count});
    const int64_t sum = sums[k % 2];
    builder.recv(group.at(group.self - 1), Slot::scratch, {sum, next.count});
    const bool is_last = k == rounds - 1;
    builder.reduce(from, next, left_from(sum), is_last ? Slot::output : Slot::scratch,
                   is_last ? target : sum);
    builder.next_round();
  }
}

void ring_allgather(Builder& builder, const Group& group, std::span<const Range> chunks, Slot from,
                    Range own) {
  const int self = group.self;
  for (int k = 0; k < group.size() - 1; ++k) {
    if (k == 0)
      builder.send(group.at(self + 1), from, own);
    else
      builder.send(group.at(self + 1), Slot::output, chunks[group.wrapped(self - k)]);
    builder.recv(group.at(self - 1), Slot::output, chunks[group.wrapped(self - 1 - k)]);
    builder.next_round();
  }
}

void binomial_broadcast(Builder& builder, const Group& group, int root, Slot from, Range range) {
  const auto place = static_cast<int>(group.wrapped(group.self - root));  // the root has 0
  for (int reached = 1; reached < group.size(); reached *= 2) {
    if (place < reached && place + reached < group.size())
      builder.send(group.at(group.self + reached), place == 0 ? from : Slot::output, range);
    if (place >= reached && place < 2 * reached)
      builder.recv(group.at(group.self - reached), Slot::output, range);
    builder.next_round();
  }
}

}  // namespace tutti
