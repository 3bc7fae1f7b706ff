#pragma once

// Allreduces by kernels that wait for each other through flags in each other's memory.
// DeviceRuntime::reduce_by_flags() launches them, and kernels/cuda/flags implements the protocol.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/packing.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

inline constexpr int kMostFlagRanks = 8;    // GPUs of one host
inline constexpr int kMostFlagBlocks = 36;  // this many fit on any GPU beside the rank's own work

/// one_shot: every rank reduces all elements into its own output, so inputs and outputs must not
/// overlap. two_shot: each rank reduces its share into all outputs, which may be the inputs.
/// packets (f32): each rank sends its elements to all peers and reduces the elements that it
/// receives. Each element is sent with the number of the current launch beside it.
enum class FlagVariant : uint8_t { one_shot, two_shot, packets };

/// The report of an abandoned wait, in host memory.
struct FlagRecord {
  uint32_t is_set;
  int32_t rank, peer, block;
  uint32_t expected, seen;  // numbers of launches
};

/// Returns the elements per part when `count` elements are split into `parts`. It is a multiple of
/// 16, so that all parts have the same alignment.
inline constexpr int64_t flag_part(int64_t count, int parts) {
  const int64_t each = (count + parts - 1) / parts;
  return (each + 15) / 16 * 16;
}

/// One rank's part of an allreduce by flags. Everything except `rank`, `state`, `record` and
/// `abort` is equal on all ranks. Spans are borrowed for the call. The memory to which they point
/// must live as long as kernels of the allreduce may run.
struct DeviceFlags {
  std::span<const std::byte* const> inputs;  // one address per rank, valid on this rank
  std::span<std::byte* const> outputs;
  std::span<std::byte* const> boards;  // board_bytes() each, zero before the first launch
  std::byte* state = nullptr;       // this rank's state: kStateBytes, zero before the first launch
  FlagRecord* record = nullptr;     // pinned host memory: reports an abandoned wait
  const uint32_t* abort = nullptr;  // pinned host memory: if nonzero, waits are abandoned
  int rank = 0;
  int blocks = 1;
  int64_t count = 0;  // elements
  DataType dtype = DataType::f32;
  ReduceOp op = ReduceOp::sum;  // not average
  Scale scale = {};
  FlagVariant variant = FlagVariant::two_shot;
  std::chrono::nanoseconds patience{};  // longest duration of one wait

  static constexpr size_t kStateBytes = 256;
  static constexpr size_t kWordBytes = size_t{2} * kMostFlagBlocks * kMostFlagRanks * 128;
  size_t board_bytes() const {
    const auto size = static_cast<int64_t>(inputs.size());
    size_t bytes = kWordBytes;
    if (variant == FlagVariant::packets)  // for two launches, since a peer may be one ahead
      bytes += static_cast<size_t>(2 * blocks * size * ((flag_part(count, blocks) + 1) / 2) * 16);
    return bytes;
  }
};

}  // namespace tutti
