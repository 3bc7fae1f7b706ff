// This must not compile if warnings are errors, because nobody waits for the Work. CMakeLists.txt
// has the text that the compiler must print.

#include <vector>

#include "tutti/core/tutti.h"

void step(tutti::Communicator& comm, std::vector<float>& gradient) {
  comm.allreduce("gradient", gradient);
}
