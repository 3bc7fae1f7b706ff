#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

// One round: every rank sends its chunk to every other rank.
Schedule direct_allgather(const Problem& problem) {
  Builder builder;
  const auto chunks = consecutive(problem.counts);
  const Range chunk = chunks[static_cast<size_t>(problem.rank)];
  const Range own{0, chunk.count};
  for (int step = 1; step < problem.size; ++step) {
    const int peer = (problem.rank + step) % problem.size;
    builder.send(peer, Slot::input, own);
    builder.recv(peer, Slot::output, chunks[static_cast<size_t>(peer)]);
  }
  builder.copy(Slot::input, own, Slot::output, chunk.begin);
  return builder.take();
}

}  // namespace tutti
