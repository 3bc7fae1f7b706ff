#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// The message that each rank sends to all others when it prepares a persistent allreduce. It holds
/// the operation that the rank wants and the location of its memory, or the reason why it cannot
/// take part.
struct PersistentOffer {
  std::string what;                         // tensors and options; equal on all ranks
  std::string failure;                      // empty: the rank can take part
  ErrorCode code = ErrorCode::unavailable;  // of the failure
  std::string identity;          // of its GPU (DeviceRuntime::identity), 63 bytes at most
  int32_t device = 0;            // the GPU's number in its process
  uint64_t board = 0, data = 0;  // addresses, for ranks of the same process
  DeviceHandle handle = {};      // of the memory behind `board`, for other processes
};

std::vector<std::byte> encode_offer(const PersistentOffer& offer);
/// Decodes the offer of rank `from`. Throws Error(corrupt_data).
PersistentOffer decode_offer(int from, std::span<const std::byte> bytes);

}  // namespace tutti
