#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

Schedule direct_gather(const Problem& problem) {
  Builder builder;
  const auto chunks = consecutive(problem.counts);
  const Range chunk = chunks[static_cast<size_t>(problem.rank)];
  const Range own{0, chunk.count};
  if (problem.rank != problem.root) {
    builder.send(problem.root, Slot::input, own);
    return builder.take();
  }
  for (int peer = 0; peer < problem.size; ++peer)
    if (peer != problem.root) builder.recv(peer, Slot::output, chunks[static_cast<size_t>(peer)]);
  builder.copy(Slot::input, own, Slot::output, chunk.begin);
  return builder.take();
}

}  // namespace tutti
