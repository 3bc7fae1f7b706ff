#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "tutti/tensor/device.h"
#include "tutti/tensor/device_flags.h"
#include "tutti/tensor/packing.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// A reduction over the memory of several ranks, all of which the device reaches:
/// outputs[j][i] = scale(op over k of inputs[k][i]) with k ascending, as kernels/reduce.h says;
/// op is not average. Each output may be the same pointer as one input.
struct DeviceReduction {
  std::span<const std::byte* const> inputs;  // at most DeviceRuntime::kMostReduced
  std::span<std::byte* const> outputs;       // as many at most
  int64_t count = 0;                         // elements
  DataType dtype = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  Scale scale = {};
};

/// A word of host-visible memory, and the least value that a stream waits for.
struct AwaitedWord {
  const uint64_t* word;
  uint64_t value;
};

/// By which another process of this host maps memory of a device: plain bytes, good for as long as
/// the process lives that made them.
using DeviceHandle = std::array<std::byte, 64>;

/// Of the memory that this process has from a device.
struct DeviceMemoryStatistics {
  size_t allocated_bytes = 0;       // handed out, rounded up to blocks
  size_t most_allocated_bytes = 0;  // at any time
  size_t reserved_bytes = 0;        // taken from the device, and kept for who asks next
  size_t largest_free_bytes = 0;    // the largest block that nobody has
  uint64_t device_waits = 0;        // streams that were made to wait for another's memory
};

/// What the library needs of a device. The CPU's is built in; CUDA's is a plugin; the tests bring a
/// fake one whose streams run late. All calls may come from any thread; none blocks but
/// synchronize(). Stream-ordered calls return at once and take effect in stream order.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual DeviceKind kind() const = 0;
  /// How many devices of this kind this process sees: indices 0 to count() - 1.
  virtual int count() = 0;
  /// For libraries that work on the device of the thread that calls them.
  virtual void make_current(Device device) = 0;
  /// Throws Error(out_of_memory) that names the bytes and the device.
  virtual void* allocate(size_t bytes, Device device) = 0;
  /// Memory for work on that stream, with any contents, without waiting for any stream. On a
  /// device aligned to 256 bytes.
  virtual void* allocate_on(size_t bytes, Device device, StreamRef stream) = 0;
  /// What was allocated on a stream may still be used by what was put there until now.
  virtual void free(void* memory, Device device) noexcept = 0;
  /// But for what other processes may map. All zero on the CPU.
  virtual DeviceMemoryStatistics memory_statistics(Device device) = 0;
  /// From now on at most so many bytes are taken from the device, so that others find some, too;
  /// more is Error(out_of_memory). What other processes may map does not count. Nothing on the CPU.
  virtual void limit_memory(Device device, size_t bytes) = 0;
  /// Memory of the host that streams reach, too (pinned).
  virtual void* allocate_host(size_t bytes) = 0;
  virtual void free_host(void* memory) noexcept = 0;
  /// A word of such memory, zero, from a pool. Host and streams may store it and wait for it.
  virtual uint64_t* take_word() = 0;
  /// No stream stores it or waits for it any more. Host functions may call this.
  virtual void give_back_word(uint64_t* word) noexcept = 0;

  virtual StreamRef create_stream(Device device) = 0;
  virtual void destroy_stream(StreamRef stream) noexcept = 0;
  /// An event marks a point of a stream; an event never recorded counts as reached.
  virtual void* create_event(Device device) = 0;
  virtual void destroy_event(void* event) noexcept = 0;
  virtual void record(void* event, StreamRef stream) = 0;
  virtual bool reached(void* event) = 0;
  virtual void wait_event(StreamRef stream, void* event) = 0;

  virtual void copy(void* target, const void* source, size_t bytes, StreamRef stream) = 0;
  /// In stream order: fills the bucket from the pieces (of memory that the device reaches;
  /// ascending offsets, not overlapping), casting to its type and scaling in the same pass, as
  /// kernels/convert.h says; elements between pieces become zero. Its lanes become clean, but
  /// `veto` sets this rank's. Spans are borrowed for the call.
  virtual void pack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                    bool veto, StreamRef stream) = 0;
  /// The way back, in stream order. If a lane is not clean, nothing is written but the outcome's
  /// word. Not clean is any other value, infinity and NaN too.
  virtual void unpack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                      const DeviceOutcome& outcome, StreamRef stream) = 0;
  /// Inputs, and outputs, of one reduction.
  static constexpr size_t kMostReduced = 64;
  /// In stream order, by one pass over all inputs.
  virtual void reduce(const DeviceReduction& reduction, StreamRef stream) = 0;
  /// In stream order, this rank's part of an allreduce whose ranks wait for each other on the
  /// device. All that it needs to know of rounds is on the device, so that a captured graph may
  /// hold it.
  virtual void reduce_by_flags(const DeviceFlags& flags, StreamRef stream) = 0;

  // Memory that other ranks work on.

  /// What tells it from any other device of this machine, whatever number a process gives it (its
  /// place on the bus).
  virtual std::string identity(Device device) = 0;
  /// Lets `from` load and store what lives on `to`, for good. Throws Error(unavailable) if the
  /// hardware cannot.
  virtual void reach(Device from, Device to) = 0;
  /// Memory that other processes can map by `handle`. Given back by free_shared(), it is kept for
  /// who next asks for as much, never freed: a process that still maps it cannot fall into a hole.
  virtual void* allocate_shared(size_t bytes, Device device, DeviceHandle& handle) = 0;
  virtual void free_shared(void* memory) noexcept = 0;
  /// Another process' memory as `device` reaches it, until unmap_shared(); mapping it twice gives
  /// one pointer. Throws Error(unavailable) if that process is gone, or is this one.
  virtual void* map_shared(const DeviceHandle& handle, Device device) = 0;
  virtual void unmap_shared(void* memory) noexcept = 0;
  /// Lets streams store and await words in this memory of the host (whole pages), until it is
  /// forgotten.
  virtual void register_host(void* memory, size_t bytes) = 0;
  virtual void forget_host(void* memory) noexcept = 0;

  /// Calls a function on the host when the stream has come here, without holding the stream. The
  /// functions of one stream are called in order. A function must not block and must put nothing
  /// on a stream; it may give back memory, streams, events and words.
  virtual void host_function(StreamRef stream, std::function<void()> function) = 0;
  /// Stores a word of host-visible memory in stream order (release).
  virtual void write_word(StreamRef stream, uint64_t* word, uint64_t value) = 0;
  /// Holds the stream until each word is at least its value (acquire), by one command.
  virtual void wait_words(StreamRef stream, std::span<const AwaitedWord> words) = 0;
  void wait_word(StreamRef stream, const uint64_t* word, uint64_t value) {
    const AwaitedWord one{word, value};
    wait_words(stream, {&one, 1});
  }
  /// Blocks the caller until everything submitted to the stream has happened.
  virtual void synchronize(StreamRef stream) = 0;
  /// Throws if a kernel has failed in a way that leaves the device of no use to this process: what
  /// is on its streams never happens. Waits for nothing.
  virtual void require_alive(Device device) = 0;
};

/// The runtime for a kind of device; the CPU's is always there, another's plugin is loaded at the
/// first call (see device_plugin.h). Throws Error(unavailable) that says why there is none and what
/// to do.
DeviceRuntime& device_runtime(DeviceKind kind);
bool has_device_runtime(DeviceKind kind) noexcept;
/// Blocks until everything on that stream of a device has happened. A null stream is that device's
/// default one, for which the device becomes the calling thread's current one.
void finish_stream(Device device, StreamRef stream);
/// The identity of the device that this process uses, if it uses one already and sees no other;
/// else empty. Loads nothing that the program has not loaded by itself.
std::string only_device_in_use();
/// Adds a runtime for its kind (a plugin, the tests' fake); it must outlive its tensors. Passing
/// null takes it away again.
void register_device_runtime(DeviceKind kind, DeviceRuntime* runtime);

}  // namespace tutti
