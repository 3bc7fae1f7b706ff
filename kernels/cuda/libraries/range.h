#pragma once

#include <nvtx3/nvtx3.hpp>

namespace tutti::cuda {

struct ProfilerDomain {
  static constexpr const char* name{"tutti"};
};
/// Names what the host puts on streams while it lives, in a domain of our own: `const Range
/// range("pack");`. A few nanoseconds where no profiler listens.
using Range = nvtx3::scoped_range_in<ProfilerDomain>;

}  // namespace tutti::cuda
