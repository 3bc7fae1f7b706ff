#pragma once

#include "tests/backends/conformance/user_stream.h"
#include "tests/support/ranks.h"

// Communicators over the nccl backend, on the fake device and the fake NCCL.

namespace tutti::test {

inline void over_nccl(Options& options) {
  options.backend = "nccl";
  options.backend_library = TUTTI_FAKE_NCCL;
}

inline void run_nccl(int size, const RankFunction& body, const Tune& more = {}) {
  run_threads(
      size, body,
      [&](Options& options) {
        over_nccl(options);
        if (more) more(options);
      },
      60);
}

/// Returns the sum of rank + 1 over all ranks.
inline double rank_sum(int size) { return size * (size + 1) / 2; }

}  // namespace tutti::test
