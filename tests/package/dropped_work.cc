// This must not compile where warnings are errors, since nobody waits for the Work. CMakeLists.txt
// has the words that the compiler must say.

#include <vector>

#include "tutti/core/tutti.h"

void step(tutti::Communicator& comm, std::vector<float>& gradient) {
  comm.allreduce("gradient", gradient);
}
