#pragma once

#include <memory>

#include "tutti/backends/backend.h"

namespace tutti {

/// For the memory of devices on several hosts: `inner` (NCCL) among the ranks of a host, `cross`
/// among the ranks of one number on their hosts, `control` among all ranks. Every rank of a host
/// drives its share between the hosts. What `inner` and `cross` do not serve together, and memory
/// of the host, is up to `control`. On one host it is `inner` alone; where the hosts have unequal
/// numbers of ranks, `control` alone.
std::unique_ptr<Backend> connect_device_levels(
    const Context& context, const BackendPlugin& inner, const BackendPlugin& cross,
    const std::function<std::unique_ptr<Backend>()>& connect_control);

}  // namespace tutti
