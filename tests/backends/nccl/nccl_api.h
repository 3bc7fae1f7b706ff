#pragma once

#include <string>

#include "tests/backends/conformance/device_api.h"

// The cases of the API suite over nccl, on the fake device and the fake NCCL.

namespace tutti::test {

/// Puts all ranks on one host, or on two named hosts if the backend has two levels.
inline void choose_nccl(Options& options, const std::string& backend) {
  options.backend = backend;
  options.backend_library = TUTTI_FAKE_NCCL;
  if (has_levels(backend)) options.host = options.rank < 2 ? "first" : "second";
}

}  // namespace tutti::test
