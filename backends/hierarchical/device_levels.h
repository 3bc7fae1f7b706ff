#pragma once

#include <memory>

#include "tutti/backends/backend.h"

namespace tutti {

/// A backend for the memory of devices on several hosts. `inner` (NCCL) connects the ranks of a
/// host, `cross` the ranks of the same number on their hosts, and `control` all ranks. Every rank
/// of a host moves its own share between the hosts. Operations that `inner` and `cross` do not both
/// serve, and operations on host memory, run in `control`. On a single host the result is `inner`
/// alone. If the hosts have unequal numbers of ranks, it is `control` alone.
std::unique_ptr<Backend> connect_device_levels(
    const Context& context, const BackendPlugin& inner, const BackendPlugin& cross,
    const std::function<std::unique_ptr<Backend>()>& connect_control);

}  // namespace tutti
