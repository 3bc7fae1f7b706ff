#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

Schedule direct_send(const Problem& problem) {
  Builder builder;
  builder.send(problem.root, Slot::input, {0, problem.counts[0]});
  return builder.take();
}

}  // namespace tutti
