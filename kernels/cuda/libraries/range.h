#pragma once

#include <nvtx3/nvtx3.hpp>

namespace tutti::cuda {

struct ProfilerDomain {
  static constexpr const char* name{"tutti"};
};
/// Names the work that the host queues during a scope, in the profiler's domain "tutti": `const
/// Range range("pack");`. It costs a few nanoseconds if no profiler is attached.
using Range = nvtx3::scoped_range_in<ProfilerDomain>;

}  // namespace tutti::cuda
