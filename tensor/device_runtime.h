#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "tutti/tensor/device.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/packing.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// A reduction over the memory of several ranks, all of which the device can access: outputs[j][i]
/// = scale(op over k of inputs[k][i]) with k ascending, as kernels/reduce.h defines it. op is not
/// average. Each output pointer may equal one input pointer.
struct DeviceReduction {
  std::span<const std::byte* const> inputs;  // at most DeviceRuntime::kMostReduced
  std::span<std::byte* const> outputs;       // also at most kMostReduced
  int64_t count = 0;                         // elements
  DataType dtype = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  Scale scale = {};
};

// The following types describe allreduces by kernels that wait for each other through flags in each
// other's memory. DeviceRuntime::reduce_by_flags() launches them, and kernels/cuda/flags implements
// the protocol.

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

/// A 64-bit word in host-visible memory, and the value that it must reach before a stream
/// continues.
struct AwaitedWord {
  const uint64_t* word;
  uint64_t value;
};

/// A handle with which another process of this host maps device memory. It is plain bytes and is
/// valid as long as the process that made it lives.
using DeviceHandle = std::array<std::byte, 64>;

/// Statistics of the memory that this process has allocated on a device.
struct DeviceMemoryStatistics {
  size_t allocated_bytes = 0;       // in use, rounded up to blocks
  size_t most_allocated_bytes = 0;  // highest allocated_bytes so far
  size_t reserved_bytes = 0;        // taken from the device: in use or kept for reuse
  size_t largest_free_bytes = 0;    // largest free block
  uint64_t device_waits = 0;  // times a stream had to wait for memory that another stream used
};

/// The operations that the library needs from a device. The CPU's runtime is built in, CUDA's is a
/// plugin, and the tests have a fake one whose streams run late. Any thread may call it; only
/// synchronize() blocks. Stream-ordered calls return immediately and take effect in stream order.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual DeviceKind kind() const = 0;
  /// Returns how many devices of this kind this process sees. Their indices are 0 to count() - 1.
  virtual int count() = 0;
  /// Makes a device the calling thread's current one, for libraries that work on the current
  /// device.
  virtual void make_current(Device device) = 0;
  /// Throws Error(out_of_memory) that names the bytes and the device.
  virtual void* allocate(size_t bytes, Device device) = 0;
  /// Returns memory for work on that stream, with arbitrary contents, without waiting for any
  /// stream. On a device it is aligned to 256 bytes.
  virtual void* allocate_on(size_t bytes, Device device, StreamRef stream) = 0;
  /// Frees memory. Work already queued on its stream may still use memory from allocate_on().
  virtual void free(void* memory, Device device) noexcept = 0;
  /// Returns statistics of the device's memory, without that of allocate_shared(). All are zero on
  /// the CPU.
  virtual DeviceMemoryStatistics memory_statistics(Device device) = 0;
  /// Limits how many bytes this process takes from the device from now on, so that memory is left
  /// for other processes. Allocations beyond the limit throw Error(out_of_memory). Memory of
  /// allocate_shared() does not count. Does nothing on the CPU.
  virtual void limit_memory(Device device, size_t bytes) = 0;
  /// Returns pinned host memory, which streams can access, too.
  virtual void* allocate_host(size_t bytes) = 0;
  virtual void free_host(void* memory) noexcept = 0;
  /// Returns a 64-bit word of pinned memory from a pool. It is zero at first. The host and streams
  /// may store values in it and wait for them.
  virtual uint64_t* take_word() = 0;
  /// Returns a word to the pool. No stream may still store values in it or wait for it. Host
  /// functions may call this.
  virtual void give_back_word(uint64_t* word) noexcept = 0;

  virtual StreamRef create_stream(Device device) = 0;
  virtual void destroy_stream(StreamRef stream) noexcept = 0;
  /// Creates an event, which marks a point of a stream. An event that was never recorded counts as
  /// reached.
  virtual void* create_event(Device device) = 0;
  virtual void destroy_event(void* event) noexcept = 0;
  virtual void record(void* event, StreamRef stream) = 0;
  virtual bool reached(void* event) = 0;
  virtual void wait_event(StreamRef stream, void* event) = 0;

  virtual void copy(void* target, const void* source, size_t bytes, StreamRef stream) = 0;
  /// Fills the bucket from the pieces in stream order. Casts to the bucket's type and scales in the
  /// same pass, as kernels/convert.h defines it. The device can access the pieces, which have
  /// ascending offsets and do not overlap. Elements between pieces become zero. The bucket's lanes
  /// (see DeviceBucket) are set to "no veto", except this rank's lane if `veto` is true. Spans are
  /// borrowed for the call.
  virtual void pack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                    bool veto, StreamRef stream) = 0;
  /// Copies the bucket back to the pieces, in stream order. If any lane of the bucket has a value
  /// other than "no veto" (infinity and NaN included), the pieces stay unchanged, and only the
  /// outcome's word is written.
  virtual void unpack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                      const DeviceOutcome& outcome, StreamRef stream) = 0;
  /// Most inputs, and most outputs, of one reduction.
  static constexpr size_t kMostReduced = 64;
  /// Reduces in stream order, in one pass over all inputs.
  virtual void reduce(const DeviceReduction& reduction, StreamRef stream) = 0;
  /// Queues this rank's part of an allreduce whose ranks wait for each other on the device. All
  /// state that changes from launch to launch is on the device, so that a captured graph may
  /// contain the allreduce.
  virtual void reduce_by_flags(const DeviceFlags& flags, StreamRef stream) = 0;

  // The following functions serve memory that several ranks access.

  /// Returns a text that identifies the device among all devices of this machine, whatever index a
  /// process gives it (its PCI bus address).
  virtual std::string identity(Device device) = 0;
  /// Lets `from` load and store the memory of `to` from now on. Throws Error(unavailable) if the
  /// hardware cannot.
  virtual void reach(Device from, Device to) = 0;
  /// Returns memory that other processes can map by `handle`. free_shared() keeps it for reuse and
  /// never frees it, so that a process that still maps it does not access freed memory.
  virtual void* allocate_shared(size_t bytes, Device device, DeviceHandle& handle) = 0;
  virtual void free_shared(void* memory) noexcept = 0;
  /// Maps another process's memory as an address on `device`, until unmap_shared(). Mapping a
  /// handle twice returns the same pointer. Throws Error(unavailable) if that process has ended, or
  /// if the handle is this process's own.
  virtual void* map_shared(const DeviceHandle& handle, Device device) = 0;
  virtual void unmap_shared(void* memory) noexcept = 0;
  /// Lets streams store and await words in this host memory (whole pages), until forget_host().
  virtual void register_host(void* memory, size_t bytes) = 0;
  virtual void forget_host(void* memory) noexcept = 0;

  /// Calls a function on the host when the stream reaches this point, without blocking the stream.
  /// The functions of one stream are called in order. A function must not block and must not queue
  /// work on a stream. It may free memory, streams, events and words.
  virtual void host_function(StreamRef stream, std::function<void()> function) = 0;
  /// Stores `value` in a word of host-visible memory in stream order (release).
  virtual void write_word(StreamRef stream, uint64_t* word, uint64_t value) = 0;
  /// Blocks the stream until each word is at least its value (acquire), with one command.
  virtual void wait_words(StreamRef stream, std::span<const AwaitedWord> words) = 0;
  void wait_word(StreamRef stream, const uint64_t* word, uint64_t value) {
    const AwaitedWord one{word, value};
    wait_words(stream, {&one, 1});
  }
  /// Blocks the caller until the stream has done all work queued on it.
  virtual void synchronize(StreamRef stream) = 0;
  /// Throws if a kernel has failed so that this process can no longer use the device. Work queued
  /// on the device's streams does not run then. Never blocks.
  virtual void require_alive(Device device) = 0;
};

/// Returns the runtime of a kind of device. The CPU's always exists; the plugin of another kind is
/// loaded at the first call (see device_plugin.h). Throws Error(unavailable) with the reason and
/// advice.
DeviceRuntime& device_runtime(DeviceKind kind);
bool has_device_runtime(DeviceKind kind) noexcept;
/// Blocks until that stream of a device has done all work queued on it. A null stream is the
/// device's default stream; the device then becomes the calling thread's current one.
void finish_stream(Device device, StreamRef stream);
/// Returns the identity of the device that this process uses, if it sees exactly one and already
/// uses it; else an empty text. Loads no driver that the program has not loaded itself.
std::string only_device_in_use();
/// Registers a runtime for its kind (a plugin's or the tests' fake). It must outlive its tensors.
/// Null removes it.
void register_device_runtime(DeviceKind kind, DeviceRuntime* runtime);

}  // namespace tutti
