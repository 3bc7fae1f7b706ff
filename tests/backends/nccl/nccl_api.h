#pragma once

#include <string>

#include "tests/backends/conformance/device_api.h"

// The API suite's cases over nccl, on the tests' device and the tests' NCCL.

namespace tutti::test {

/// Ranks on one host; for two levels on two, which may be one in truth.
inline void choose_nccl(Options& options, const std::string& backend) {
  options.backend = backend;
  options.backend_library = TUTTI_FAKE_NCCL;
  if (has_levels(backend)) options.host = options.rank < 2 ? "first" : "second";
}

}  // namespace tutti::test
