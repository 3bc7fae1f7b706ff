// A rank that only starts: it meets the others, waits for all, and ends.
#include "tutti/core/communicator.h"

int main() {
  tutti::Communicator::create()->barrier_blocking();
  return 0;
}
