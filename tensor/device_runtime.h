#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "tutti/tensor/device.h"

namespace tutti {

/// What the library needs of a device. The CPU's is built in; CUDA's is a plugin; the tests bring a
/// fake one whose streams run late. All calls may come from any thread; none blocks but
/// synchronize(). Stream-ordered calls return at once and take effect in stream order.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual DeviceKind kind() const = 0;
  /// Throws Error(out_of_memory) that names the bytes and the device.
  virtual void* allocate(size_t bytes, Device device) = 0;
  virtual void free(void* memory, Device device) noexcept = 0;

  virtual StreamRef create_stream(Device device) = 0;
  virtual void destroy_stream(StreamRef stream) noexcept = 0;
  /// An event marks a point of a stream; an event never recorded counts as reached.
  virtual void* create_event(Device device) = 0;
  virtual void destroy_event(void* event) noexcept = 0;
  virtual void record(void* event, StreamRef stream) = 0;
  virtual bool reached(void* event) = 0;
  virtual void wait_event(StreamRef stream, void* event) = 0;

  virtual void copy(void* target, const void* source, size_t bytes, StreamRef stream) = 0;
  /// Runs a host function in stream order; it must not call the runtime.
  virtual void host_function(StreamRef stream, std::function<void()> function) = 0;
  /// Stores a word of host-visible memory in stream order (release).
  virtual void write_word(StreamRef stream, uint64_t* word, uint64_t value) = 0;
  /// Holds the stream until the word is at least `value` (acquire).
  virtual void wait_word(StreamRef stream, const uint64_t* word, uint64_t value) = 0;
  /// Blocks the caller until everything submitted to the stream has happened.
  virtual void synchronize(StreamRef stream) = 0;
};

/// The runtime for a kind of device; the CPU's is always there. Throws Error(unavailable) for a
/// kind that nobody registered.
DeviceRuntime& device_runtime(DeviceKind kind);
bool has_device_runtime(DeviceKind kind) noexcept;
/// Adds a runtime for its kind (a plugin, the tests' fake); it must outlive its tensors. Passing
/// null takes it away again.
void register_device_runtime(DeviceKind kind, DeviceRuntime* runtime);

}  // namespace tutti
