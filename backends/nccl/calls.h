#pragma once

#include <optional>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/nccl/library.h"

namespace tutti {

/// Returns the collectives that NCCL serves on a device. NCCL guarantees no order of reduction. So
/// with Determinism::rank_order the result contains no kinds that reduce.
std::vector<DeviceService> nccl_services(Device device, Determinism determinism);

/// Returns whether nccl_call() makes several calls, which need a group around them.
bool needs_group(const Collective& collective);

/// Finds NCCL's operators. NCCL runs an `average` as a sum.
///
/// Sums are computed in the type of the elements. For an average of f16, an operator first divides
/// each operand by a power of two, so that the sum does not overflow. This is exact except for the
/// smallest numbers. The operator lives as long as the communicator for which it was made.
class NcclOperators {
 public:
  /// Returns the number by which the operator divides each operand of this collective, so that a
  /// sum over `size` ranks does not overflow. Returns 1 if it does not divide.
  static int divisor(const Collective& collective, int size);
  ncclResult_t find(const NcclLibrary& library, ncclComm_t comm, const Collective& collective,
                    int size, ncclRedOp_t& found);

 private:
  std::optional<ncclRedOp_t> scaled_;  // the operator for averages of f16
};

/// Calls NCCL for a collective on a stream. `op` is the operator that find() has found. Calls
/// without elements are left out on all ranks. Stops at the first error.
ncclResult_t nccl_call(const NcclLibrary& library, ncclComm_t comm, const Collective& collective,
                       int rank, ncclRedOp_t op, StreamRef stream);

}  // namespace tutti
