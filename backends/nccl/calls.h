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
/// Sums travel in their own type. For an average of f16 an operator first multiplies each operand
/// by a power of two, so that the sum does not overflow. This is exact except for the smallest
/// numbers. The operator lives as long as the communicator that it is made for.
class NcclOperators {
 public:
  /// The number by which this collective's sums over `size` ranks are divided; 1: they are not.
  static int divisor(const Collective& collective, int size);
  ncclResult_t find(const NcclLibrary& library, ncclComm_t comm, const Collective& collective,
                    int size, ncclRedOp_t& found);

 private:
  std::optional<ncclRedOp_t> scaled_;  // of f16
};

/// Calls NCCL for a collective on a stream, with the operator that was found for it. It calls
/// nothing for counts of zero, on all ranks alike. It stops at the first error.
ncclResult_t nccl_call(const NcclLibrary& library, ncclComm_t comm, const Collective& collective,
                       int rank, ncclRedOp_t op, StreamRef stream);

}  // namespace tutti
