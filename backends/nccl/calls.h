#pragma once

#include <optional>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/nccl/library.h"

namespace tutti {

/// What NCCL serves on a device. It reduces in no order that it would promise.
std::vector<DeviceService> nccl_services(Device device, Determinism determinism);

/// Whether nccl_call() makes several calls, which need a group around them.
bool needs_group(const Collective& collective);

/// NCCL's name for what a collective does to its operands; `average` is a sum.
///
/// Sums travel in their own type. Those of an average of f16 are kept from overflowing by an
/// operator that multiplies each operand before, by a power of two, which is exact but for the
/// smallest numbers. It lives as long as the communicator that it is made for.
class NcclOperators {
 public:
  /// By what the sums of this collective over `size` ranks are smaller; 1: they are not.
  static int divisor(const Collective& collective, int size);
  ncclResult_t find(const NcclLibrary& library, ncclComm_t comm, const Collective& collective,
                    int size, ncclRedOp_t& found);

 private:
  std::optional<ncclRedOp_t> scaled_;  // of f16
};

/// Calls NCCL for a collective on a stream, with the operator that was found for it. Counts of zero
/// call nothing, on all ranks alike. The first error ends it.
ncclResult_t nccl_call(const NcclLibrary& library, ncclComm_t comm, const Collective& collective,
                       int rank, ncclRedOp_t op, StreamRef stream);

}  // namespace tutti
