#include <tutti/tutti.h>

#include <cstdio>
#include <vector>

int main() {
  auto comm =
      tutti::Communicator::create();  // finds rank, size and peers by itself; alone it is one rank
  std::vector<float> gradient(1 << 20, float(comm->rank()));
  comm->allreduce("gradient", gradient).wait();  // mean over all ranks, in place
  if (comm->rank() == 0) std::printf("%g\n", gradient[0]);
}
