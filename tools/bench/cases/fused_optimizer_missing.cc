// In place of fused_optimizer_case.cc where tutti::nn is not built.
#include "tools/bench/cases/cases.h"
#include "tutti/base/error.h"

namespace tutti::bench {

bool run_fused_optimizer(Session&) {
  throw Error(ErrorCode::unavailable,
              "fused_optimizer needs tutti::nn, which was not built; see its requirements in "
              "adapters/nn/CMakeLists.txt");
}

}  // namespace tutti::bench
