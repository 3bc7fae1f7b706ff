#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// What a rank that prepares a persistent allreduce tells the others: what it wants, and where its
/// memory is, or what it lacks.
struct PersistentOffer {
  std::string what;                         // tensors and options; equal on all ranks
  std::string failure;                      // empty: it lacks nothing
  ErrorCode code = ErrorCode::unavailable;  // of the failure
  std::string identity;          // of its GPU (DeviceRuntime::identity), 63 bytes at most
  int32_t device = 0;            // the GPU's number in its process
  uint64_t board = 0, data = 0;  // addresses, for ranks of the same process
  DeviceHandle handle = {};      // for others: of memory that begins with the board
};

std::vector<std::byte> encode_offer(const PersistentOffer& offer);
/// What rank `from` has encoded. Throws Error(corrupt_data).
PersistentOffer decode_offer(int from, std::span<const std::byte> bytes);

}  // namespace tutti
