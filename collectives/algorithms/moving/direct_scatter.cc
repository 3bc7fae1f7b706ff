#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

Schedule direct_scatter(const Problem& problem) {
  Builder builder;
  const auto chunks = consecutive(problem.counts);
  const Range chunk = chunks[static_cast<size_t>(problem.rank)];
  if (problem.rank != problem.root) {
    builder.recv(problem.root, Slot::output, {0, chunk.count});
    return builder.take();
  }
  for (int peer = 0; peer < problem.size; ++peer)
    if (peer != problem.root) builder.send(peer, Slot::input, chunks[static_cast<size_t>(peer)]);
  builder.copy(Slot::input, chunk, Slot::output, 0);
  return builder.take();
}

}  // namespace tutti
