#include "tutti/tensor/device_runtime.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/tensor/device_plugin.h"

namespace tutti {

namespace {

// The CPU as a device. Every call completes before it returns, so streams and events do nothing.
// Its buckets are packed piece by piece while they are sent, by kernels/convert.h.
class CpuRuntime final : public DeviceRuntime {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  int count() override { return 1; }
  void make_current(Device) override {}
  void* allocate(size_t bytes, Device) override {
    const size_t rounded = (bytes + 63) / 64 * 64;
    void* memory = std::aligned_alloc(64, rounded == 0 ? 64 : rounded);
    if (memory == nullptr)
      throw Error(ErrorCode::out_of_memory, fmt::format("cannot allocate {} bytes on cpu", bytes));
    return memory;
  }
  void* allocate_on(size_t bytes, Device device, StreamRef) override {
    return allocate(bytes, device);
  }
  void free(void* memory, Device) noexcept override { std::free(memory); }
  DeviceMemoryStatistics memory_statistics(Device) override { return {}; }
  void limit_memory(Device, size_t) override {}
  void* allocate_host(size_t bytes) override { return allocate(bytes, {}); }
  void free_host(void* memory) noexcept override { std::free(memory); }
  uint64_t* take_word() override { return new uint64_t(0); }
  void give_back_word(uint64_t* word) noexcept override { delete word; }
  StreamRef create_stream(Device) override { return {}; }
  void destroy_stream(StreamRef) noexcept override {}
  void* create_event(Device) override { return nullptr; }
  void destroy_event(void*) noexcept override {}
  void record(void*, StreamRef) override {}
  bool reached(void*) override { return true; }
  void wait_event(StreamRef, void*) override {}
  void copy(void* target, const void* source, size_t bytes, StreamRef) override {
    if (bytes > 0) std::memcpy(target, source, bytes);
  }
  void pack(const DeviceBucket&, std::span<const Piece>, Scale, bool, StreamRef) override {
    throw Error(ErrorCode::internal, "buckets of host memory are not packed by the device");
  }
  void unpack(const DeviceBucket&, std::span<const Piece>, Scale, const DeviceOutcome&,
              StreamRef) override {
    throw Error(ErrorCode::internal, "buckets of host memory are not unpacked by the device");
  }
  void reduce(const DeviceReduction&, StreamRef) override { throw not_of_devices(); }
  void reduce_by_flags(const DeviceFlags&, StreamRef) override { throw not_of_devices(); }
  std::string identity(Device) override { return "cpu"; }
  void reach(Device, Device) override {}
  void* allocate_shared(size_t, Device, DeviceHandle&) override { throw not_of_devices(); }
  void free_shared(void*) noexcept override {}
  void* map_shared(const DeviceHandle&, Device) override { throw not_of_devices(); }
  void unmap_shared(void*) noexcept override {}
  void register_host(void*, size_t) override {}
  void forget_host(void*) noexcept override {}
  void host_function(StreamRef, std::function<void()> function) override { function(); }
  void write_word(StreamRef, uint64_t* word, uint64_t value) override {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  void wait_words(StreamRef, std::span<const AwaitedWord> words) override {
    for (const auto& [word, value] : words) {
      const std::atomic_ref reference(const_cast<uint64_t&>(*word));
      for (uint64_t seen = reference.load(std::memory_order_acquire); seen < value;
           seen = reference.load(std::memory_order_acquire))
        reference.wait(seen, std::memory_order_acquire);
    }
  }
  void synchronize(StreamRef) override {}
  void require_alive(Device) override {}

 private:
  static Error not_of_devices() {
    return {ErrorCode::internal, "backends reduce and share host memory by themselves"};
  }
};

// Runtimes belong to the process, because a process has one driver for a kind of device. The table
// holds no other state.
CpuRuntime cpu_runtime;
std::array<std::atomic<DeviceRuntime*>, 3> runtimes{&cpu_runtime, nullptr, nullptr};

}  // namespace

DeviceRuntime& device_runtime(DeviceKind kind) {
  auto& place = runtimes.at(static_cast<size_t>(kind));
  auto* runtime = place.load();
  if (runtime == nullptr) {
    // Threads that get here at the same time load the same plugin and get the same runtime.
    runtime = &load_device_plugin(kind, device_plugin_file(kind)).runtime();
    place.store(runtime);
  }
  return *runtime;
}

void finish_stream(Device device, StreamRef stream) {
  auto& runtime = device_runtime(device.kind);
  if (stream.native == nullptr) runtime.make_current(device);
  runtime.synchronize(stream);
}

bool has_device_runtime(DeviceKind kind) noexcept {
  return runtimes[static_cast<size_t>(kind)].load() != nullptr;
}

std::string only_device_in_use() {
  const auto is_loaded = [](const char* library) {
    void* const handle = ::dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (handle != nullptr) ::dlclose(handle);
    return handle != nullptr;
  };
  for (const auto kind : {DeviceKind::fake, DeviceKind::cuda}) {
    // The program may use a GPU (with PyTorch, for example) before it passes the first GPU tensor.
    // It has then loaded the driver itself.
    if (!has_device_runtime(kind) && (kind == DeviceKind::fake || !is_loaded("libcuda.so.1")))
      continue;
    try {
      auto& runtime = device_runtime(kind);
      if (runtime.count() == 1) return runtime.identity({kind, 0});
    } catch (const Error&) {
      // This process cannot have tensors on that device.
    }
  }
  return "";
}

void register_device_runtime(DeviceKind kind, DeviceRuntime* runtime) {
  if (kind == DeviceKind::cpu && runtime == nullptr) runtime = &cpu_runtime;
  runtimes.at(static_cast<size_t>(kind)).store(runtime);
}

}  // namespace tutti
