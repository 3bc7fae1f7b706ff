#pragma once

#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/nccl/library.h"

namespace tutti {

/// What NCCL serves on a device. It reduces in no order that it would promise.
std::vector<DeviceService> nccl_services(Device device, Determinism determinism);

/// Whether nccl_call() makes several calls, which need a group around them.
bool needs_group(const Collective& collective);

/// Calls NCCL for a collective on a stream; `average` reduces to the sum. Counts of zero call
/// nothing, on all ranks alike. The first error ends it.
ncclResult_t nccl_call(const NcclLibrary& library, ncclComm_t comm, const Collective& collective,
                       int rank, StreamRef stream);

}  // namespace tutti
