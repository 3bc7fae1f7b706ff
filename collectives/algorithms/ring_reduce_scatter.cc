#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/sections.h"

namespace tutti {

// The first half of the ring allreduce, with the caller's chunks. Partial sums travel through two
// buffers in turn: one is sent while the other receives.
Schedule ring_reduce_scatter(const Problem& problem) {
  if (problem.size == 1) return copy_through(problem);
  Builder builder;
  const Group group = everyone(problem);
  const auto chunks = consecutive(problem.counts);
  const int64_t buffers[2] = {builder.scratch(longest(chunks)), builder.scratch(longest(chunks))};
  const int rounds = problem.size - 1;
  for (int k = 0; k < rounds; ++k) {
    const Range sent = chunks[group.wrapped(problem.rank - 1 - k)];
    const Range next = chunks[group.wrapped(problem.rank - 2 - k)];
    if (k == 0)
      builder.send(group.at(problem.rank + 1), Slot::input, sent);
    else
      builder.send(group.at(problem.rank + 1), Slot::scratch, {buffers[(k - 1) % 2], sent.count});
    const int64_t received = buffers[k % 2];
    builder.recv(group.at(problem.rank - 1), Slot::scratch, {received, next.count});
    const bool is_last = k == rounds - 1;
    builder.reduce(Slot::input, next, left_from(received), is_last ? Slot::output : Slot::scratch,
                   is_last ? 0 : received);
    builder.next_round();
  }
  return builder.take();
}

}  // namespace tutti
