#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

Schedule direct_recv(const Problem& problem) {
  Builder builder;
  builder.recv(problem.root, Slot::output, {0, problem.counts[0]});
  return builder.take();
}

}  // namespace tutti
