#include "tests/fake_cuda/fake_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tutti/base/error.h"

namespace tutti::test {

class FakeCuda::Source final : public cuda::MemorySource {
 public:
  explicit Source(FakeCuda& device) : device_(device) {}

  void* reserve(size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (device_.is_capturing()) {
      device_.add_fault("memory was taken from the driver while a stream is captured");
      return nullptr;
    }
    if (bytes > device_.memory_limit_ - std::min(device_.memory_limit_, reserved_)) return nullptr;
    auto* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (memory == nullptr) return nullptr;
    std::memset(memory, 0xa5, bytes);
    reserved_ += bytes;
    sizes_[memory] = bytes;
    return memory;
  }
  void release(void* memory) noexcept override {
    const std::lock_guard lock(mutex_);
    reserved_ -= sizes_[memory];
    sizes_.erase(memory);
    std::free(memory);
  }
  void* create_event() override { return device_.create_event({DeviceKind::fake, 0}); }
  void destroy_event(void* event) noexcept override { device_.destroy_event(event); }
  bool record(void* event, StreamRef stream) noexcept override {
    try {
      device_.record(event, stream);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }
  bool reached(void* event) noexcept override {
    try {
      return device_.reached(event);
    } catch (const std::exception&) {
      return false;
    }
  }
  void wait(StreamRef stream, void* event) override { device_.wait_event(stream, event); }

 private:
  FakeCuda& device_;
  std::mutex mutex_;
  size_t reserved_ = 0;
  std::map<void*, size_t> sizes_;
};

FakeCuda::FakeCuda(const Options& options)
    : FakeDevice(options),
      source_(std::make_unique<Source>(*this)),
      pool_(std::make_unique<cuda::MemoryPool>(*source_, "fake:0")) {}

FakeCuda::~FakeCuda() = default;

void* FakeCuda::allocate(size_t bytes, Device) {
  auto* memory = static_cast<std::byte*>(pool_->allocate_idle(bytes));
  std::memset(memory, 0xa5, bytes);
  const std::lock_guard lock(mutex_);
  owned_[memory] = bytes;
  return memory;
}

void* FakeCuda::allocate_on(size_t bytes, Device, StreamRef stream) {
  auto* memory = static_cast<std::byte*>(pool_->allocate(bytes, stream));
  {
    const std::lock_guard lock(mutex_);
    owned_[memory] = bytes;
  }
  // Overwrites the memory, so that no code can rely on its old contents.
  enqueue(stream, [memory, bytes] { std::memset(memory, 0xa5, bytes); });
  return memory;
}

void FakeCuda::free(void* memory, Device) noexcept try {
  if (memory == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    owned_.erase(static_cast<std::byte*>(memory));
  }
  pool_->free(memory);
} catch (...) {
  // free() must not throw, so the memory is lost.
}

void* FakeCuda::allocate_shared(size_t bytes, Device device, DeviceHandle& handle) {
  auto* memory = static_cast<std::byte*>(FakeDevice::allocate_shared(bytes, device, handle));
  const std::lock_guard lock(mutex_);
  owned_[memory] = bytes;
  return memory;
}

void FakeCuda::free_shared(void* memory) noexcept {
  {
    const std::lock_guard lock(mutex_);
    owned_.erase(static_cast<std::byte*>(memory));
  }
  FakeDevice::free_shared(memory);
}

bool FakeCuda::reached(void* event) {
  if (is_capturing()) add_fault("an event was asked for while a stream is captured");
  return FakeDevice::reached(event);
}

void FakeCuda::synchronize(StreamRef stream) {
  if (is_capturing()) add_fault("a stream was synchronized while it is captured");
  FakeDevice::synchronize(stream);
  std::string fault;
  {
    const std::lock_guard lock(mutex_);
    if (!faults_.empty()) fault = faults_.front();
  }
  if (!fault.empty()) throw Error(ErrorCode::internal, "fake cuda: " + fault);
}

bool FakeCuda::owns(const void* memory, size_t bytes) {
  const auto* first = static_cast<const std::byte*>(memory);
  const std::lock_guard lock(mutex_);
  auto at = owned_.upper_bound(first);
  if (at == owned_.begin()) return false;
  --at;
  return first + bytes <= at->first + at->second;
}

void FakeCuda::begin_capture() {
  const std::lock_guard lock(mutex_);
  is_capturing_ = true;
}
void FakeCuda::end_capture() {
  const std::lock_guard lock(mutex_);
  is_capturing_ = false;
}
bool FakeCuda::is_capturing() {
  const std::lock_guard lock(mutex_);
  return is_capturing_;
}

void FakeCuda::add_fault(std::string fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(std::move(fault));
}

std::vector<std::string> FakeCuda::take_faults() {
  const std::lock_guard lock(mutex_);
  return std::exchange(faults_, {});
}

void FakeCuda::count_call(const std::string& function) {
  const std::lock_guard lock(mutex_);
  ++calls_[function];
}

std::map<std::string, int64_t> FakeCuda::calls() {
  const std::lock_guard lock(mutex_);
  return calls_;
}

void FakeCuda::set_memory_limit(size_t bytes) { memory_limit_ = bytes; }

FakeCuda& fake_cuda() {
  static auto* const device = [] {
    FakeDevice::Options options;
    const char* delay = std::getenv("FAKE_CUDA_DELAY");
    options.most_delay = std::chrono::microseconds(delay == nullptr ? 0 : std::atoi(delay));
    return new FakeCuda(options);
  }();
  return *device;
}

FakeTroubles& fake_troubles() {
  static FakeTroubles troubles;
  return troubles;
}

namespace {

class HostLauncher final : public cuda::Launcher {
 private:
  struct Entry {
    size_t bytes;
    void (*run)(const void* kernel, bool is_backward);
  };
  template <class Kernel>
  static void run(const void* kernel, bool is_backward) {
    cuda::run_on_host(*static_cast<const Kernel*>(kernel), is_backward);
  }
  template <class... Kernel>
  static const Entry& entry_of(cuda::Kernels<Kernel...>, size_t index) {
    static const Entry entries[] = {{sizeof(Kernel), run<Kernel>}...};
    return entries[index];
  }
  void put(size_t index, const void* kernel, int64_t, StreamRef stream) override {
    const auto& entry = entry_of(cuda::AllKernels(), index);
    const auto* bytes = static_cast<const std::byte*>(kernel);
    fake_cuda().count_call("launch");
    // The memory has the alignment of new, which is enough for kernels.
    std::vector<std::byte> copy(bytes, bytes + entry.bytes);
    fake_cuda().enqueue(stream, [&entry, copy = std::move(copy), is_backward = is_backward_] {
      entry.run(copy.data(), is_backward);
    });
    is_backward_ = !is_backward_;
  }

  bool is_backward_ = false;
};

}  // namespace

std::shared_ptr<cuda::Launcher> host_launcher() { return std::make_shared<HostLauncher>(); }

}  // namespace tutti::test
