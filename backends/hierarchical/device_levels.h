#pragma once

#include <memory>

#include "tutti/backends/backend.h"

namespace tutti {

/// Connects a backend for the memory of devices on several hosts. It has three parts: `inner`
/// (NCCL) connects the ranks of a host, `cross` connects the ranks that have the same number on
/// their hosts, and `control` connects all ranks.
///
/// Every rank of a host moves its own share of the data between the hosts. `control` runs
/// operations on host memory and operations that `inner` and `cross` do not both serve. On a single
/// host the result is `inner` alone. If the hosts have unequal numbers of ranks, it is `control`
/// alone.
std::unique_ptr<Backend> connect_device_levels(
    const Context& context, const BackendPlugin& inner, const BackendPlugin& cross,
    const std::function<std::unique_ptr<Backend>()>& connect_control);

}  // namespace tutti
