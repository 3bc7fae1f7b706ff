#include "tutti/kernels/cuda/flags/flags.h"

namespace tutti::cuda {

namespace {

constexpr int kFlagThreads = 256;      // more would run out of registers
constexpr uint32_t kLookEvery = 1024;  // polls from one check of abort and deadline to the next

__device__ uint64_t nanos_now() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Stores and awaits flags on a GPU, so that other GPUs and the host see all earlier stores.
struct PtxAtomics {
  uint64_t deadline;

  __device__ void store_release(uint32_t* word, uint32_t value) const {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
  }
  __device__ uint32_t load_acquire(const uint32_t* word) const {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ void store_packet(FlagPacket* place, const FlagPacket& packet) const {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(place),
                 "r"(packet.first), "r"(packet.first_round), "r"(packet.second),
                 "r"(packet.second_round)
                 : "memory");
  }
  __device__ FlagPacket load_packet(const FlagPacket* place) const {
    FlagPacket packet;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(packet.first), "=r"(packet.first_round), "=r"(packet.second),
                   "=r"(packet.second_round)
                 : "l"(place)
                 : "memory");
    return packet;
  }
  __device__ bool may_go_on(uint32_t polls, const uint32_t* abort) const {
    if (polls % kLookEvery != kLookEvery - 1) return true;
    return load_acquire(abort) == 0 && nanos_now() < deadline;
  }
  // Abandons a wait. It must not trap: that would end the context, and with it all ranks that are
  // threads of this process.
  __device__ void leave(FlagRecord& record, FlagState& state, const FlagRecord& what) const {
    if (atomicExch(&state.is_poisoned, 1) != 0) return;
    record.rank = what.rank;
    record.peer = what.peer;
    record.block = what.block;
    record.expected = what.expected;
    record.seen = what.seen;
    store_release(&record.is_set, 1);
  }
};

template <class T, bool kPackets>
__global__ void __launch_bounds__(kFlagThreads, 1)  // without the 1, ptxas spills registers
    flag_kernel(const __grid_constant__ FlagCall call, uint64_t nanos) {
  PtxAtomics atomics{nanos_now() + nanos};
#pragma unroll 1  // else the compiler makes a copy of all phases for each iteration
  for (int phase = 0; phase < kFlagPhases; ++phase)
    if (!__syncthreads_and(flag_phase<T, kPackets>(call, phase, static_cast<int>(blockIdx.x),
                                                   static_cast<int>(threadIdx.x), kFlagThreads,
                                                   atomics)))
      return;
}

// There is one kernel per type, and one for packets, so that each uses only the registers it needs.
using FlagKernel = void (*)(FlagCall, uint64_t);
FlagKernel kernel_for(DataType dtype, FlagVariant variant) {
  if (variant == FlagVariant::packets) return flag_kernel<float, true>;
  switch (dtype) {
    case DataType::f64:
      return flag_kernel<double, false>;
    case DataType::f32:
      return flag_kernel<float, false>;
    case DataType::f16:
      return flag_kernel<Float16, false>;
    case DataType::bf16:
      return flag_kernel<BFloat16, false>;
    case DataType::i8:
      return flag_kernel<int8_t, false>;
    case DataType::i16:
      return flag_kernel<int16_t, false>;
    case DataType::i32:
      return flag_kernel<int32_t, false>;
    case DataType::i64:
      return flag_kernel<int64_t, false>;
    case DataType::u16:
      return flag_kernel<uint16_t, false>;
    case DataType::u32:
      return flag_kernel<uint32_t, false>;
    case DataType::u64:
      return flag_kernel<uint64_t, false>;
    case DataType::u8:
    case DataType::boolean:
    case DataType::raw:  // never reduced
      break;
  }
  return flag_kernel<uint8_t, false>;
}

}  // namespace

cudaError_t launch_flags(const FlagCall& call, uint64_t nanos, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(call.blocks);
  kernel_for(call.table.dtype, call.variant)<<<blocks, kFlagThreads, 0, stream>>>(call, nanos);
  return cudaGetLastError();
}

cudaError_t load_flag_kernels() {
  cudaFuncAttributes attributes;
  for (const auto variant : {FlagVariant::two_shot, FlagVariant::packets})
    for (int dtype = 0; dtype < kDataTypeCount; ++dtype) {
      const auto kernel = kernel_for(static_cast<DataType>(dtype), variant);
      const auto status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
      if (status != cudaSuccess) return status;
    }
  return cudaSuccess;
}

}  // namespace tutti::cuda
