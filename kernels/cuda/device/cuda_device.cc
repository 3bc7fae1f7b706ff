#include "tutti/kernels/cuda/device/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <limits>
#include <memory>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/kernels/cuda/device/calls.h"
#include "tutti/kernels/cuda/device/range.h"
#include "tutti/kernels/cuda/flags/flags.h"
#include "tutti/kernels/cuda/pack/launch.h"

namespace tutti::cuda {

namespace {

constexpr size_t kSlabBytes = 16384;
constexpr size_t kLeastHostBytes = 4096;
constexpr size_t kWordBytes = 64;    // a cache line, because host and device poll the word
constexpr size_t kMostAwaited = 64;  // words that one command awaits; CUDA allows 256

struct Event {
  cudaEvent_t event;
  int device;
};

Event& event_of(void* event) { return *static_cast<Event*>(event); }

cudaStream_t native(StreamRef stream) { return static_cast<cudaStream_t>(stream.native); }

bool is_default(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

}  // namespace

CudaDevice& cuda_device() {
  static auto* device = new CudaDevice;
  return *device;
}

CudaDevice::CudaDevice() : devices_(static_cast<size_t>(count_devices())) {}

// --- devices ------------------------------------------------------------------------------------

CudaDevice::DeviceState& CudaDevice::state(int device) {
  if (device < 0 || device >= count())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no {}: this process sees {} of them, numbered from 0; see "
                            "CUDA_VISIBLE_DEVICES",
                            to_string(Device{DeviceKind::cuda, device}), count()));
  auto& state = devices_[static_cast<size_t>(device)];
  std::call_once(state.once, [&] { prepare(state, device); });
  return state;
}

void CudaDevice::prepare(DeviceState& state, int device) {
  driver_.check(driver_.context_retain(&state.context, device), "make its context", device);
  const ContextScope scope(driver_, state.context, device);
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "start", device);
  check(load_kernels(), "load its kernels", device);
  check(load_flag_kernels(), "load its kernels", device);
  int yes = 0;
  check(cudaDeviceGetAttribute(&yes, cudaDevAttrMemoryPoolsSupported, device), "start", device);
  state.has_pools = yes != 0;
  if (state.has_pools) {
    // Freed memory stays in the pool for reuse.
    cudaMemPool_t pool;
    uint64_t all = std::numeric_limits<uint64_t>::max();
    check(cudaDeviceGetDefaultMemPool(&pool, device), "start", device);
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "start", device);
  }
  if (driver_.write_value != nullptr)
    state.has_word_commands =
        driver_.device_attribute(&yes, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device) ==
            CUDA_SUCCESS &&
        yes != 0;
  check(cudaStreamCreateWithPriority(&state.memory_stream, cudaStreamNonBlocking, greatest),
        "create a stream", device);
  state.memory = std::make_unique<DeviceMemory>(driver_, state.context, device, state.has_pools,
                                                state.memory_stream);
  state.pool =
      std::make_unique<MemoryPool>(*state.memory, to_string(Device{DeviceKind::cuda, device}));
  int none = -1;
  first_used_.compare_exchange_strong(none, device);
}

int CudaDevice::current_device() const {
  CUcontext context = nullptr;
  const int first_used = first_used_.load();
  if (first_used >= 0 && driver_.context_current(&context) == CUDA_SUCCESS && context == nullptr)
    return first_used;
  int device = 0;
  check(cudaGetDevice(&device), "ask for the current device", device);
  return device;
}

int CudaDevice::device_of(StreamRef stream, const void* memory, const void* other) {
  if (devices_.size() == 1) return 0;
  const int device = current_device();
  // Without this scope, any query would make CUDA create a context.
  const auto current = scope(device);
  if (!is_default(native(stream))) {
    int its = 0;
    check(cudaStreamGetDevice(native(stream), &its), "use a stream", device);
    return its;
  }
  for (const void* pointer : {memory, other}) {
    cudaPointerAttributes attributes{};
    if (pointer != nullptr && cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess &&
        attributes.type == cudaMemoryTypeDevice)
      return attributes.device;
    forget_error();
  }
  return device;
}

void CudaDevice::make_current(Device device) {
  state(device.index);
  check(cudaSetDevice(device.index), "become the current device", device.index);
}

DeviceDescription CudaDevice::describe(int device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "read its properties", device);
  DeviceDescription description{properties.name,
                                fmt::format("sm_{}{}", properties.major, properties.minor),
                                fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID,
                                            properties.pciBusID, properties.pciDeviceID),
                                static_cast<int64_t>(properties.totalGlobalMem)};
  const auto& its = state(device);
  if (!its.has_word_commands)
    description.notes.push_back("no stream memory operations: kernels wait for flags instead");
  if (!its.has_pools)
    description.notes.push_back("no memory pools: giving memory back to the driver waits for it");
  return description;
}

// --- memory -------------------------------------------------------------------------------------

void* CudaDevice::allocate(size_t bytes, Device device) {
  const auto& its = state(device.index);
  void* memory = its.pool->allocate_idle(bytes);
  const auto current = scope(device.index);
  auto status = cudaMemsetAsync(memory, 0, std::max<size_t>(bytes, 1), its.memory_stream);
  if (status == cudaSuccess) status = cudaStreamSynchronize(its.memory_stream);
  if (status != cudaSuccess) free(memory, device);
  check(status, "clear memory", device.index);
  return memory;
}

void* CudaDevice::allocate_host(size_t bytes) {
  const size_t size = std::bit_ceil(std::max(bytes, kLeastHostBytes));
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = free_host_.find(size); found != free_host_.end()) {
      void* memory = found->second;
      free_host_.erase(found);
      return memory;
    }
  }
  const int device = current_device();
  const auto current = scope(device);
  void* memory = nullptr;
  const auto status = cudaHostAlloc(&memory, size, cudaHostAllocPortable | cudaHostAllocMapped);
  if (status == cudaErrorMemoryAllocation) {
    forget_error();
    throw Error(ErrorCode::out_of_memory,
                fmt::format("cannot allocate {} bytes of pinned host memory; see the limits of "
                            "this machine or container",
                            bytes));
  }
  check(status, "allocate pinned host memory", device);
  const std::lock_guard lock(mutex_);
  host_sizes_.emplace(memory, size);
  return memory;
}

void CudaDevice::free(void* memory, Device device) noexcept try {
  if (memory != nullptr) state(device.index).pool->free(memory);
} catch (...) {
  // No caller can handle the error, so the memory is lost.
}

void CudaDevice::free_host(void* memory) noexcept {
  if (memory == nullptr) return;
  const std::lock_guard lock(mutex_);
  free_host_.emplace(host_sizes_.at(memory), memory);
}

uint64_t* CudaDevice::take_word() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_words_.empty()) {
      auto* word = free_words_.back();
      free_words_.pop_back();
      std::atomic_ref(*word).store(0, std::memory_order_release);
      return word;
    }
  }
  // The slab of words is never freed, because CUDA waits for the device when it frees pinned
  // memory. There are only a few slabs.
  auto* slab = static_cast<std::byte*>(allocate_host(kSlabBytes));
  const std::lock_guard lock(mutex_);
  for (size_t at = kWordBytes; at < kSlabBytes; at += kWordBytes)
    free_words_.push_back(new (slab + at) uint64_t(0));
  return new (slab) uint64_t(0);
}

void CudaDevice::give_back_word(uint64_t* word) noexcept {
  const std::lock_guard lock(mutex_);
  free_words_.push_back(word);
}

// --- memory shared with other ranks -------------------------------------------------------------

std::string CudaDevice::identity(Device device) {
  char place[32] = "";
  check(cudaDeviceGetPCIBusId(place, sizeof place, device.index), "read its bus address",
        device.index);
  return place;
}

void CudaDevice::reach(Device from, Device to) {
  state(to.index);
  const auto current = scope(from.index);
  if (from != to) enable_peer(from.index, to.index);
}

void* CudaDevice::allocate_shared(size_t bytes, Device device, DeviceHandle& handle) {
  const auto current = scope(device.index);
  return shared_.allocate(bytes, device.index, handle);
}

void* CudaDevice::map_shared(const DeviceHandle& handle, Device device) {
  const auto current = scope(device.index);
  return shared_.map(handle, device.index);
}

void CudaDevice::unmap_shared(void* memory) noexcept try {
  const auto current = scope(current_device());
  shared_.unmap(memory);
} catch (...) {
  // No caller can handle the error, so the mapping is lost.
}

void CudaDevice::register_host(void* memory, size_t bytes) {
  const int device = current_device();
  const auto current = scope(device);
  const auto status =
      cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (status == cudaErrorHostMemoryAlreadyRegistered) return forget_error();
  check(status, "pin memory of the host", device);
}

void CudaDevice::forget_host(void* memory) noexcept try {
  const auto current = scope(current_device());
  cudaHostUnregister(memory);
  forget_error();
} catch (...) {
  // No caller can handle the error. The memory stays pinned until it is unmapped.
}

// --- streams and events -------------------------------------------------------------------------

StreamRef CudaDevice::create_stream(Device device) {
  const auto current = scope(device.index);
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "create a stream", device.index);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "create a stream",
        device.index);
  return {stream};
}

void CudaDevice::destroy_stream(StreamRef stream) noexcept try {
  const auto current = scope(current_device());
  cudaStreamDestroy(native(stream));
  forget_error();
} catch (...) {
}

void* CudaDevice::create_event(Device device) {
  const auto current = scope(device.index);
  auto event = std::make_unique<Event>(Event{nullptr, device.index});
  check(cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming), "create an event",
        device.index);
  return event.release();
}

void CudaDevice::destroy_event(void* event) noexcept try {
  if (event == nullptr) return;
  const std::unique_ptr<Event> its(static_cast<Event*>(event));
  const auto current = scope(its->device);
  cudaEventDestroy(its->event);
  forget_error();
} catch (...) {
}

void CudaDevice::record(void* event, StreamRef stream) {
  const auto& its = event_of(event);
  const auto current = scope(its.device);
  check(cudaEventRecord(its.event, native(stream)), "record an event", its.device);
}

bool CudaDevice::reached(void* event) {
  const auto& its = event_of(event);
  const auto current = scope(its.device);
  const auto status = cudaEventQuery(its.event);
  if (status == cudaErrorNotReady) {
    forget_error();
    return false;
  }
  check(status, "ask for an event", its.device);
  return true;
}

void CudaDevice::wait_event(StreamRef stream, void* event) {
  const auto& its = event_of(event);
  const int device = is_default(native(stream)) ? its.device : device_of(stream);
  const auto current = scope(device);
  check(cudaStreamWaitEvent(native(stream), its.event, 0), "wait for an event", device);
}

void CudaDevice::synchronize(StreamRef stream) {
  const int device = device_of(stream);
  const auto current = scope(device);
  check(cudaStreamSynchronize(native(stream)), "finish a stream", device);
}

// Queries a stream that is never busy for long. Its status reports any fatal error of a kernel in
// this context. The relaxed capture mode keeps a capture of another thread valid.
void CudaDevice::require_alive(Device device) {
  auto& its = state(device.index);
  const auto current = scope(device.index);
  auto mode = cudaStreamCaptureModeRelaxed;
  const bool is_relaxed = cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
  const auto status = cudaStreamQuery(its.memory_stream);
  if (is_relaxed) cudaThreadExchangeStreamCaptureMode(&mode);
  if (status == cudaErrorNotReady) return forget_error();
  check(status, "go on", device.index);
}

// --- in stream order ----------------------------------------------------------------------------

void CudaDevice::copy(void* target, const void* source, size_t bytes, StreamRef stream) {
  if (bytes == 0) return;
  const int device = device_of(stream, target, source);
  const auto current = scope(device);
  check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, native(stream)),
        fmt::format("copy {} bytes", bytes), device);
}

void CudaDevice::pack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                      bool veto, StreamRef stream) {
  const Range range("pack");
  TUTTI_CHECK(scale.divisor > 0);
  const int device = device_of(stream, bucket.data);
  const auto current = scope(device);
  check(launch_pack(bucket, pieces, scale, veto, native(stream)), "pack a bucket", device);
}

void CudaDevice::unpack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                        const DeviceOutcome& outcome, StreamRef stream) {
  const Range range("unpack");
  TUTTI_CHECK(scale.divisor > 0);
  const int device = device_of(stream, bucket.data);
  const auto current = scope(device);
  check(launch_unpack(bucket, pieces, scale, outcome, native(stream)), "unpack a bucket", device);
}

void CudaDevice::reduce(const DeviceReduction& reduction, StreamRef stream) {
  const Range range("reduce");
  TUTTI_CHECK(reduction.scale.divisor > 0 && !reduction.inputs.empty() &&
              reduction.inputs.size() <= kMostReduced && reduction.outputs.size() <= kMostReduced);
  if (reduction.count == 0 || reduction.outputs.empty()) return;
  const int device = device_of(stream, reduction.outputs[0]);
  const auto current = scope(device);
  check(launch_reduce(reduction, native(stream)), "reduce", device);
}

void CudaDevice::reduce_by_flags(const DeviceFlags& flags, StreamRef stream) {
  const Range range("reduce by flags");
  TUTTI_CHECK(flags.boards.size() <= kMostFlagRanks && flags.blocks <= kMostFlagBlocks &&
              flags.op != ReduceOp::average && flags.scale.divisor > 0);
  const int device = device_of(stream, flags.state);
  const auto current = scope(device);
  check(launch_flags(make_flag_call(flags), static_cast<uint64_t>(flags.patience.count()),
                     native(stream)),
        "reduce by flags", device);
}

void CudaDevice::host_function(StreamRef stream, std::function<void()> function) {
  // At exit CUDA unmaps the words that the thread of HostFunctions polls. This exit handler was
  // registered after CUDA's, so it runs first and ends that thread in time.
  std::call_once(ended_with_process_, [] { std::atexit([] { cuda_device().functions_.end(); }); });
  thread_local const char own = 0;
  const void* key = native(stream);
  if (native(stream) == cudaStreamPerThread)
    key = &own;
  else if (is_default(native(stream)))
    key = &state(device_of(stream));
  auto* word = take_word();
  try {
    write_word(stream, word, 1);
  } catch (...) {
    give_back_word(word);
    throw;
  }
  functions_.add(key, word, std::move(function));
}

void CudaDevice::write_word(StreamRef stream, uint64_t* word, uint64_t value) {
  const int device = device_of(stream);
  const auto& its = state(device);
  const auto current = scope(device);
  if (its.has_word_commands &&
      driver_.write_value(native(stream), reinterpret_cast<CUdeviceptr>(word), value,
                          CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS)
    return;
  check(launch_write_word(word, value, native(stream)), "write a word", device);
}

void CudaDevice::wait_words(StreamRef stream, std::span<const AwaitedWord> words) {
  const int device = device_of(stream);
  const auto& its = state(device);
  const auto current = scope(device);
  while (its.has_word_commands && !words.empty()) {
    std::array<CUstreamBatchMemOpParams, kMostAwaited> commands{};
    const auto some = words.first(std::min(words.size(), commands.size()));
    for (size_t i = 0; i < some.size(); ++i) {
      auto& command = commands[i].waitValue;
      command.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
      command.address = reinterpret_cast<CUdeviceptr>(some[i].word);
      command.value64 = some[i].value;
      command.flags = CU_STREAM_WAIT_VALUE_GEQ;
    }
    if (driver_.batch_words(native(stream), static_cast<unsigned>(some.size()), commands.data(),
                            0) != CUDA_SUCCESS)
      break;
    words = words.subspan(some.size());
  }
  for (const auto& [word, value] : words)
    check(launch_wait_word(word, value, native(stream)), "wait for a word", device);
}

}  // namespace tutti::cuda
