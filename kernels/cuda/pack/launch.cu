#include <algorithm>
#include <type_traits>

#include "tutti/kernels/cuda/pack/launch.h"
#include "tutti/kernels/cuda/pack/pack_tile.h"
#include "tutti/kernels/cuda/pack/reduce_tile.h"

namespace tutti::cuda {

namespace {

constexpr int kMostGates = 256;  // per launch

struct Lanes {
  std::byte* data;  // the first lane
  DataType dtype;
  int64_t count;
  int64_t own;
  int clean;
};

struct Ending {
  uint64_t* word;  // null unless this is the last launch
  uint64_t clean;
  uint64_t vetoed;
  uint64_t* gates[kMostGates];
  int gate_count;
};

// Stores a word so that the host and all devices see it, after everything stored before it.
__device__ void store_release(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ uint64_t load_acquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

// Returns whether every verdict lane of the bucket is clean, so that no rank vetoes the operation.
// All threads of a block must call it.
__device__ bool all_clean(const Lanes& lanes) {
  bool clean = true;
  for (int64_t i = threadIdx.x; i < lanes.count; i += blockDim.x)
    clean &= lane_is(lanes.dtype, lanes.data + i * bytes_of(lanes.dtype), lanes.clean);
  return __syncthreads_and(clean);
}

template <class Table>
__device__ __forceinline__ void run_tile_of_block(const Table& table) {
  run_tile(find_tile(table, static_cast<int32_t>(blockIdx.x)), static_cast<int>(threadIdx.x),
           kThreads);
}

template <class Table>
__global__ void __launch_bounds__(kThreads) pack_kernel(const __grid_constant__ Table table) {
  run_tile_of_block(table);
}

__global__ void lanes_kernel(Lanes lanes, bool veto) {
  for (int64_t i = threadIdx.x; i < lanes.count; i += blockDim.x)
    store_lane(lanes.dtype, lanes.data + i * bytes_of(lanes.dtype),
               (veto && i == lanes.own) != (lanes.clean == 1));
}

template <class Table>
__global__ void __launch_bounds__(kThreads)
    unpack_kernel(const __grid_constant__ Table table, const __grid_constant__ Lanes lanes) {
  if (all_clean(lanes)) run_tile_of_block(table);
}

// T is the element type; `void` reads it from the table at run time. Common gradient types have
// their own kernels, which use fewer registers, so that enough blocks are resident to hide load
// latency.
template <class T>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(const __grid_constant__ ReduceTable table, int64_t tiles) {
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const auto thread = static_cast<int>(threadIdx.x);
    if constexpr (std::is_void_v<T>)
      reduce_tile(table, tile, thread, kThreads);
    else
      reduce_part_of<T>(table, part_of_tile(table, tile), thread, kThreads);
  }
}

auto* reduce_kernel_for(DataType dtype) {
  switch (dtype) {
    case DataType::f32:
      return &reduce_kernel<float>;
    case DataType::bf16:
      return &reduce_kernel<BFloat16>;
    case DataType::f16:
      return &reduce_kernel<Float16>;
    default:
      return &reduce_kernel<void>;
  }
}

// Runs after the unpacking kernels. It stores 1 in the gates, on which other streams wait, and then
// the outcome. Readers of these words see the unpacked elements.
__global__ void end_kernel(Lanes lanes, const __grid_constant__ Ending ending) {
  const bool clean = all_clean(lanes);
  if (clean)
    for (int i = static_cast<int>(threadIdx.x); i < ending.gate_count; i += blockDim.x)
      store_release(ending.gates[i], 1);
  __syncthreads();
  if (threadIdx.x == 0 && ending.word != nullptr)
    store_release(ending.word, clean ? ending.clean : ending.vetoed);
}

__global__ void write_word_kernel(uint64_t* word, uint64_t value) { store_release(word, value); }

__global__ void wait_word_kernel(const uint64_t* word, uint64_t value) {
  // Compares cyclically, like cuStreamWaitValue64.
  while (static_cast<int64_t>(load_acquire(word) - value) < 0) __nanosleep(500);
}

Lanes lanes_of(const DeviceBucket& bucket) {
  return {bucket.data + bucket.count * bytes_of(bucket.dtype), bucket.dtype, bucket.lanes,
          bucket.own_lane, bucket.clean()};
}

}  // namespace

cudaError_t launch_pack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                        bool veto, cudaStream_t stream) {
  for_each_table(bucket, pieces, scale, false, [&](const auto& table, int32_t tiles) {
    pack_kernel<std::decay_t<decltype(table)>>
        <<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(table);
  });
  if (bucket.lanes > 0) lanes_kernel<<<1, 32, 0, stream>>>(lanes_of(bucket), veto);
  return cudaGetLastError();
}

cudaError_t launch_unpack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                          const DeviceOutcome& outcome, cudaStream_t stream) {
  const Lanes lanes = lanes_of(bucket);
  for_each_table(bucket, pieces, scale, true, [&](const auto& table, int32_t tiles) {
    unpack_kernel<std::decay_t<decltype(table)>>
        <<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(table, lanes);
  });
  auto gates = outcome.gates;
  if (gates.empty() && outcome.word == nullptr) return cudaGetLastError();
  do {
    Ending ending{};
    ending.gate_count = static_cast<int>(std::min<size_t>(gates.size(), kMostGates));
    std::copy_n(gates.begin(), ending.gate_count, ending.gates);
    gates = gates.subspan(static_cast<size_t>(ending.gate_count));
    if (gates.empty()) {
      ending.word = outcome.word;
      ending.clean = outcome.clean;
      ending.vetoed = outcome.vetoed;
    }
    end_kernel<<<1, 32, 0, stream>>>(lanes, ending);
  } while (!gates.empty());
  return cudaGetLastError();
}

cudaError_t launch_reduce(const DeviceReduction& reduction, cudaStream_t stream) {
  const int64_t tiles = reduce_tiles(reduction.count);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(tiles, 1 << 30));
  reduce_kernel_for(reduction.dtype)<<<blocks, kThreads, 0, stream>>>(make_reduce_table(reduction),
                                                                      tiles);
  return cudaGetLastError();
}

cudaError_t launch_write_word(uint64_t* word, uint64_t value, cudaStream_t stream) {
  write_word_kernel<<<1, 1, 0, stream>>>(word, value);
  return cudaGetLastError();
}

cudaError_t launch_wait_word(const uint64_t* word, uint64_t value, cudaStream_t stream) {
  wait_word_kernel<<<1, 1, 0, stream>>>(word, value);
  return cudaGetLastError();
}

cudaError_t load_kernels() {
  cudaFuncAttributes attributes;
  for (const void* kernel : {reinterpret_cast<const void*>(&pack_kernel<SmallPackTable>),
                             reinterpret_cast<const void*>(&pack_kernel<LargePackTable>),
                             reinterpret_cast<const void*>(&lanes_kernel),
                             reinterpret_cast<const void*>(&unpack_kernel<SmallPackTable>),
                             reinterpret_cast<const void*>(&unpack_kernel<LargePackTable>),
                             reinterpret_cast<const void*>(&reduce_kernel<float>),
                             reinterpret_cast<const void*>(&reduce_kernel<BFloat16>),
                             reinterpret_cast<const void*>(&reduce_kernel<Float16>),
                             reinterpret_cast<const void*>(&reduce_kernel<void>),
                             reinterpret_cast<const void*>(&end_kernel),
                             reinterpret_cast<const void*>(&write_word_kernel),
                             reinterpret_cast<const void*>(&wait_word_kernel)})
    if (const auto status = cudaFuncGetAttributes(&attributes, kernel); status != cudaSuccess)
      return status;
  return cudaSuccess;
}

}  // namespace tutti::cuda
