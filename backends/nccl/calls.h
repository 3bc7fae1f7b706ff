#pragma once

#include <optional>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/nccl/library.h"

namespace tutti {

/// Returns what NCCL serves on a device. It promises no order of reduction, so under rank_order it
/// reduces nothing.
std::vector<DeviceService> nccl_services(Device device, Determinism determinism);

/// Returns whether nccl_call() makes several calls, which need a group around them.
bool needs_group(const Collective& collective);

/// NCCL's operator for a collective; `average` is a sum.
///
/// Sums are computed in the type of their elements. For an average of f16 an operator first
/// multiplies each operand by a power of two, so that the sum does not overflow. This is exact
/// except for the smallest numbers. The operator lives as long as the communicator that it is made
/// for.
class NcclOperators {
 public:
  /// Returns the number that divides this collective's sums over `size` ranks; 1: they are not
  /// divided.
  static int divisor(const Collective& collective, int size);
  ncclResult_t find(const NcclLibrary& library, ncclComm_t comm, const Collective& collective,
                    int size, ncclRedOp_t& found);

 private:
  std::optional<ncclRedOp_t> scaled_;  // the operator for f16
};

/// Calls NCCL for a collective on a stream, with the operator that was found for it. If a call has
/// no elements, all ranks leave it out. Stops at the first error.
ncclResult_t nccl_call(const NcclLibrary& library, ncclComm_t comm, const Collective& collective,
                       int rank, ncclRedOp_t op, StreamRef stream);

}  // namespace tutti
