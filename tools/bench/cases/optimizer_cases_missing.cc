// Replaces optimizer_cases.cc if tutti::nn is not built.
#include "tools/bench/cases/cases.h"
#include "tutti/base/error.h"

namespace tutti::bench {

namespace {
[[noreturn]] void refuse(const char* name) {
  throw Error(ErrorCode::unavailable,
              std::string(name) +
                  " needs tutti::nn, which was not built; see its requirements in "
                  "adapters/nn/CMakeLists.txt");
}
}  // namespace

bool run_fused_optimizer(Session&) { refuse("fused_optimizer"); }
bool run_sharded(Session&) { refuse("sharded"); }

}  // namespace tutti::bench
