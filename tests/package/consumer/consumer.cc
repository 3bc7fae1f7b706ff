#include <tutti/tutti.h>

#include <cstdio>
#include <vector>

int main() {
  auto comm = tutti::Communicator::create();
  std::vector<float> values(1000, static_cast<float>(comm->rank() + 1));
  comm->allreduce("values", values, tutti::ReduceOp::sum).wait();
  if (comm->size() == 2 && values.front() == 3 && values.back() == 3) return 0;
  std::fprintf(stderr, "%d ranks, sum %g\n", comm->size(), static_cast<double>(values[0]));
  return 1;
}
