#include "tests/tensor/fake_flags.h"

#include <atomic>

#include "tests/kernels/cuda/host_atomics.h"

namespace tutti {

namespace {

constexpr int kThreads = kMostFlagRanks;  // threads of a block: at least one for each peer
std::atomic<int> last_blocks{0};

template <class T, bool kPackets>
void run(const cuda::FlagCall& call, test::HostAtomics atomics) {
  last_blocks = call.blocks;
  for (int block = 0; block < call.blocks; ++block)
    for (int phase = 0; phase < cuda::kFlagPhases; ++phase)
      for (int thread = 0; thread < kThreads; ++thread)
        if (!cuda::flag_phase<T, kPackets>(call, phase, block, thread, kThreads, atomics)) return;
}

using Run = void (*)(const cuda::FlagCall&, test::HostAtomics);
Run run_of(DataType dtype) {
  switch (dtype) {
    case DataType::f64:
      return run<double, false>;
    case DataType::f32:
      return run<float, false>;
    case DataType::f16:
      return run<Float16, false>;
    case DataType::bf16:
      return run<BFloat16, false>;
    case DataType::i8:
      return run<int8_t, false>;
    case DataType::i16:
      return run<int16_t, false>;
    case DataType::i32:
      return run<int32_t, false>;
    case DataType::i64:
      return run<int64_t, false>;
    case DataType::u16:
      return run<uint16_t, false>;
    case DataType::u32:
      return run<uint32_t, false>;
    case DataType::u64:
      return run<uint64_t, false>;
    case DataType::u8:
    case DataType::boolean:
    case DataType::raw:
      break;
  }
  return run<uint8_t, false>;
}

}  // namespace

std::function<void()> fake_flags(const DeviceFlags& flags, uint64_t seed) {
  const auto run_it =
      flags.variant == FlagVariant::packets ? run<float, true> : run_of(flags.dtype);
  return [call = cuda::make_flag_call(flags), run_it, patience = flags.patience,
          random =
              std::minstd_rand(static_cast<unsigned>(seed + static_cast<uint64_t>(flags.rank)))] {
    run_it(call, {random, Clock::now() + std::chrono::duration_cast<Clock::duration>(patience)});
  };
}

int last_fake_flag_blocks() { return last_blocks; }

}  // namespace tutti
