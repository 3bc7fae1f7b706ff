#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// The device of the tests: host memory, and streams that are threads. A stream starts each of its
/// operations after a random delay. So the host is nearly always ahead of it, as with a GPU, and
/// code that forgets to wait reads old bytes. The object registers itself as the runtime of
/// DeviceKind::fake. Only one may exist at a time.
///
/// It is stricter than a GPU, to find mistakes. Fresh memory is filled with garbage. It is an
/// Error(internal) if a host function calls the runtime, if a stream has more than 65,536
/// operations pending, or if a process maps its own memory. A null stream is the default stream.
class FakeDevice : public DeviceRuntime {
 public:
  struct Options {
    uint64_t seed = 1;
    std::chrono::microseconds least_delay{0};
    std::chrono::microseconds most_delay{200};
    /// How long finish_streams() waits, and how long the destructor waits before it drops pending
    /// operations.
    std::chrono::milliseconds farewell{5000};
    /// The number of hardware queues, which the streams share in turn. A stream that waits holds
    /// later operations of other streams in its queue. 0: each stream has its own queue.
    int queues = 0;
    /// The number of devices that it reports. With 1, ranks that are threads share it, so wait_on()
    /// waits on the host.
    int devices = 1;
    /// If empty, `auto` does not see that ranks share the device.
    std::string identity = {};
  };

  FakeDevice();
  explicit FakeDevice(Options options);
  ~FakeDevice() override;

  /// Returns how often the host has waited for a stream. Tests of code that must not wait compare
  /// it.
  int64_t synchronize_count() const;
  /// Waits for all operations of all streams, including destroyed ones. A program must call it
  /// before it returns from main(), because libraries that the operations use (oneDNN) may be gone
  /// after that.
  void finish_streams();
  /// Makes calls that query a stream (record, reached, synchronize, require_alive) throw
  /// Error(unavailable), as a GPU does after a sticky error, until `failed` is false. Operations
  /// that have not begun never run.
  void fail_for_good(bool failed = true);

  DeviceKind kind() const override { return DeviceKind::fake; }
  int count() override;
  void make_current(Device) override {}
  void* allocate(size_t bytes, Device device) override;
  void* allocate_on(size_t bytes, Device device, StreamRef stream) override;
  void free(void* memory, Device device) noexcept override;
  DeviceMemoryStatistics memory_statistics(Device) override { return {}; }
  void limit_memory(Device, size_t) override {}
  void* allocate_host(size_t bytes) override;
  void free_host(void* memory) noexcept override;
  uint64_t* take_word() override;
  void give_back_word(uint64_t* word) noexcept override;
  StreamRef create_stream(Device device) override;
  void destroy_stream(StreamRef stream) noexcept override;
  void* create_event(Device device) override;
  void destroy_event(void* event) noexcept override;
  void record(void* event, StreamRef stream) override;
  bool reached(void* event) override;
  void wait_event(StreamRef stream, void* event) override;
  void copy(void* target, const void* source, size_t bytes, StreamRef stream) override;
  void pack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale, bool veto,
            StreamRef stream) override;
  void unpack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
              const DeviceOutcome& outcome, StreamRef stream) override;
  void reduce(const DeviceReduction& reduction, StreamRef stream) override;
  void reduce_by_flags(const DeviceFlags& flags, StreamRef stream) override;
  std::string identity(Device) override;
  void reach(Device, Device) override {}
  void* allocate_shared(size_t bytes, Device device, DeviceHandle& handle) override;
  void free_shared(void* memory) noexcept override;
  void* map_shared(const DeviceHandle& handle, Device device) override;
  void unmap_shared(void* memory) noexcept override;
  void register_host(void*, size_t) override {}
  void forget_host(void*) noexcept override {}
  void host_function(StreamRef stream, std::function<void()> function) override;
  void write_word(StreamRef stream, uint64_t* word, uint64_t value) override;
  void wait_words(StreamRef stream, std::span<const AwaitedWord> words) override;
  void synchronize(StreamRef stream) override;
  void require_alive(Device) override { check_alive(); }

 private:
  class Implementation;
  void check_alive() const;
  std::unique_ptr<Implementation> implementation_;
  std::atomic<bool> has_failed_{false};
};

}  // namespace tutti
