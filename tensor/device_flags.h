#pragma once

// Allreduces of kernels that wait for each other by words in each other's memory, as
// DeviceRuntime::reduce_by_flags() launches them (kernels/cuda/flags has the protocol).

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/packing.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

inline constexpr int kMostFlagRanks = 8;    // the GPUs of one host
inline constexpr int kMostFlagBlocks = 36;  // fit on any GPU beside the rank's own work

/// one_shot: every rank reduces all elements into its own output, so inputs and outputs are apart.
/// two_shot: each rank reduces its share into all outputs, which may be the inputs. packets (f32):
/// each rank sends its elements to all, with the round's number beside them, and reduces what
/// comes.
enum class FlagVariant : uint8_t { one_shot, two_shot, packets };

/// What is told of a wait that was left, in memory of the host.
struct FlagRecord {
  uint32_t is_set;
  int32_t rank, peer, block;
  uint32_t expected, seen;  // rounds
};

/// Elements of each of some parts of a whole: whole packs, so that all parts are aligned alike.
inline constexpr int64_t flag_part(int64_t count, int parts) {
  const int64_t each = (count + parts - 1) / parts;
  return (each + 15) / 16 * 16;
}

/// One rank's part of such an allreduce. All but `rank`, the state and memory of the host is equal
/// on all ranks. Spans are borrowed for the call; what they point to, for as long as rounds may
/// run.
struct DeviceFlags {
  std::span<const std::byte* const> inputs;  // by rank, as this rank reaches them
  std::span<std::byte* const> outputs;
  std::span<std::byte* const> boards;  // board_bytes() each, zeros before the first round
  std::byte* state = nullptr;          // of this rank alone: kStateBytes, zeros before the first
  FlagRecord* record = nullptr;        // pinned memory of the host: where a wait was left
  const uint32_t* abort = nullptr;     // likewise: not 0: leave
  int rank = 0;
  int blocks = 1;
  int64_t count = 0;  // elements
  DataType dtype = DataType::f32;
  ReduceOp op = ReduceOp::sum;  // not average
  Scale scale = {};
  FlagVariant variant = FlagVariant::two_shot;
  std::chrono::nanoseconds patience{};  // of each wait

  static constexpr size_t kStateBytes = 256;
  static constexpr size_t kWordBytes = size_t{2} * kMostFlagBlocks * kMostFlagRanks * 128;
  size_t board_bytes() const {
    const auto size = static_cast<int64_t>(inputs.size());
    size_t bytes = kWordBytes;
    if (variant == FlagVariant::packets)  // of two rounds, since a peer may be one ahead
      bytes += static_cast<size_t>(2 * blocks * size * ((flag_part(count, blocks) + 1) / 2) * 16);
    return bytes;
  }
};

}  // namespace tutti
