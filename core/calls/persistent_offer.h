#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// The message that each rank sends to all others when it prepares a persistent allreduce. It
/// describes the operation and this rank's memory, or says why the rank cannot take part.
struct PersistentOffer {
  std::string what;     // describes tensors and options; must be equal on all ranks
  std::string failure;  // why the rank cannot take part; empty: it can
  ErrorCode code = ErrorCode::unavailable;  // code of the failure
  std::string identity;          // identity of the GPU (DeviceRuntime::identity), 63 bytes at most
  int32_t device = 0;            // index of the GPU in its process
  uint64_t board = 0, data = 0;  // addresses, valid in the same process
  DeviceHandle handle = {};      // for other processes: handle of the memory at `board`
};

std::vector<std::byte> encode_offer(const PersistentOffer& offer);
/// Decodes the offer of rank `from`. Throws Error(corrupt_data).
PersistentOffer decode_offer(int from, std::span<const std::byte> bytes);

}  // namespace tutti
