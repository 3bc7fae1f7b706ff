// A rank that only starts: it connects, waits for all ranks, and ends.
#include "tutti/core/communicator.h"

int main() {
  tutti::Communicator::create()->barrier_blocking();
  return 0;
}
