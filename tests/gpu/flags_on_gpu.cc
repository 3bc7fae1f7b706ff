// The flag kernels on a GPU. Ranks are streams of one process, and all their blocks fit on the GPU
// together. Without a GPU every test is skipped with a reason.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/gpu.h"
#include "tutti/base/error.h"
#include "tutti/kernels/cuda/flags/flags.h"

namespace tutti {
namespace {

using cuda::FlagBoard;
using cuda::FlagCall;
using cuda::FlagPacket;
using cuda::FlagState;

constexpr int kKinds = 4;  // kinds of inputs, which rounds use in turn
constexpr uint64_t kPatience = 20'000'000'000, kSoon = 200'000'000;  // ns

void must(cudaError_t status) {
  if (status != cudaSuccess) throw Error(ErrorCode::unavailable, cudaGetErrorString(status));
}

/// Cleared memory of the device, or of the host if the device can reach it.
class Memory {
 public:
  explicit Memory(size_t bytes, bool is_host = false) : is_host_(is_host) {
    if (is_host_) {
      must(cudaHostAlloc(&data_, bytes, cudaHostAllocMapped));
      std::memset(data_, 0, bytes);
    } else {
      must(cudaMalloc(&data_, bytes));
      must(cudaMemset(data_, 0, bytes));
    }
  }
  ~Memory() {
    if (data_ != nullptr) is_host_ ? cudaFreeHost(data_) : cudaFree(data_);
  }
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), is_host_(other.is_host_) {}
  Memory& operator=(Memory&&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  bool is_host_;
};

struct Rank {
  Memory inputs, data, output, board, packets, state, record, results;
  cudaStream_t stream = nullptr;
  FlagCall call = {};
};

// The memory and streams of all ranks.
class FlagRanks {
 public:
  // `kept` is the number of rounds whose results are kept.
  FlagRanks(FlagVariant variant, int size, int blocks, int64_t count, int kept)
      : size_(size), count_(count), kept_(kept), abort_(sizeof(uint32_t), true) {
    FlagCall common = {};
    common.variant = variant;
    common.size = size;
    common.blocks = blocks;
    common.abort = abort_.as<uint32_t>();
    common.table.count = count;
    common.table.dtype = DataType::f32;
    common.table.op = ReduceOp::sum;
    common.table.input_count = common.table.output_count = size;
    cuda::cut_flags(common);
    const auto bytes = static_cast<size_t>(count) * sizeof(float);
    const auto packets =
        static_cast<size_t>(cuda::packet_places(common.packets_of_block, blocks, size));
    for (int rank = 0; rank < size; ++rank) {
      auto& own = ranks_.emplace_back(
          Rank{Memory(kKinds * bytes), Memory(bytes), Memory(bytes), Memory(sizeof(FlagBoard)),
               Memory(packets * sizeof(FlagPacket)), Memory(sizeof(FlagState)),
               Memory(sizeof(FlagRecord), true), Memory(static_cast<size_t>(kept) * bytes)});
      must(cudaStreamCreateWithFlags(&own.stream, cudaStreamNonBlocking));
      std::vector<float> values;
      for (int kind = 0; kind < kKinds; ++kind)
        for (int64_t i = 0; i < count; ++i) values.push_back(value(rank, kind, i));
      must(cudaMemcpy(own.inputs.as<float>(), values.data(), kKinds * bytes,
                      cudaMemcpyHostToDevice));
      common.table.inputs[rank] = own.data.as<std::byte>();
      // The two-shot variant stores into the memory that it loads from.
      common.table.outputs[rank] =
          (variant == FlagVariant::two_shot ? own.data : own.output).as<std::byte>();
      common.boards[rank] = own.board.as<FlagBoard>();
      common.packets[rank] = own.packets.as<FlagPacket>();
    }
    for (int rank = 0; rank < size; ++rank) {
      auto& own = ranks_[static_cast<size_t>(rank)];
      own.call = common;
      own.call.rank = rank;
      own.call.state = own.state.as<FlagState>();
      own.call.record = own.record.as<FlagRecord>();
    }
    must(cudaDeviceSynchronize());
  }
  ~FlagRanks() {
    for (auto& rank : ranks_) cudaStreamDestroy(rank.stream);
  }

  // Queues one round of a rank on its stream. If `keep` is not negative, the result is kept with
  // this index.
  void enqueue(int rank, int round, int keep, uint64_t patience = kPatience) {
    auto& own = ranks_[static_cast<size_t>(rank)];
    const auto bytes = static_cast<size_t>(count_) * sizeof(float);
    must(cudaMemcpyAsync(own.data.as<float>(), own.inputs.as<float>() + round % kKinds * count_,
                         bytes, cudaMemcpyDeviceToDevice, own.stream));
    must(cuda::launch_flags(own.call, patience, own.stream));
    if (keep >= 0)
      must(cudaMemcpyAsync(own.results.as<float>() + keep * count_, own.call.table.outputs[rank],
                           bytes, cudaMemcpyDeviceToDevice, own.stream));
  }
  void finish() { must(cudaDeviceSynchronize()); }
  cudaStream_t stream(int rank) const { return ranks_[static_cast<size_t>(rank)].stream; }
  const FlagRecord& record(int rank) const {
    return *ranks_[static_cast<size_t>(rank)].record.as<FlagRecord>();
  }

  // Counts the kept elements that are not the sum of their round; kept index k is of round first +
  // step * k.
  int64_t wrong(int first, int step) const {
    int64_t wrong = 0;
    std::vector<float> seen(static_cast<size_t>(kept_) * static_cast<size_t>(count_));
    for (const auto& own : ranks_) {
      must(cudaMemcpy(seen.data(), own.results.as<float>(), seen.size() * sizeof(float),
                      cudaMemcpyDeviceToHost));
      for (int keep = 0; keep < kept_; ++keep)
        for (int64_t i = 0; i < count_; ++i) {
          float expected = 0;
          for (int rank = 0; rank < size_; ++rank)
            expected += value(rank, (first + step * keep) % kKinds, i);
          wrong += seen[static_cast<size_t>(keep * count_ + i)] != expected;
        }
    }
    return wrong;
  }

 private:
  static float value(int rank, int kind, int64_t i) {
    return static_cast<float>((rank + 1) * 1000 + 100 * kind + i % 7);
  }

  const int size_;
  const int64_t count_;
  const int kept_;
  const Memory abort_;
  std::vector<Rank> ranks_;
};

class FlagsOnGpu : public testing::TestWithParam<FlagVariant> {
 protected:
  void SetUp() override {
    if (const auto reason = test::why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
    // A stream that waits for another stream's kernel must not be ahead of it in the same hardware
    // queue.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    must(cuda::load_flag_kernels());
  }
};
INSTANTIATE_TEST_SUITE_P(Variants, FlagsOnGpu,
                         testing::Values(FlagVariant::one_shot, FlagVariant::two_shot,
                                         FlagVariant::packets),
                         [](const auto& info) {
                           return std::string(info.param == FlagVariant::one_shot   ? "one_shot"
                                              : info.param == FlagVariant::two_shot ? "two_shot"
                                                                                    : "packets");
                         });

TEST_P(FlagsOnGpu, AreSumsOfAllRanks) {
  constexpr int kRounds = 300;
  for (const int size : {2, 3, 4, 8})
    for (const int blocks : {1, 7})
      for (const int64_t count : {int64_t{1}, int64_t{1001}, int64_t{40'000}}) {
        FlagRanks ranks(GetParam(), size, blocks, count, kRounds);
        for (int round = 0; round < kRounds; ++round)
          for (int rank = 0; rank < size; ++rank) ranks.enqueue(rank, round, round);
        ranks.finish();
        EXPECT_EQ(ranks.wrong(0, 1), 0) << size << " ranks, " << blocks << " blocks, " << count;
        for (int rank = 0; rank < size; ++rank) EXPECT_EQ(ranks.record(rank).is_set, 0u);
      }
}

// The device counts rounds, so each graph continues where the one before ended.
TEST_P(FlagsOnGpu, OneHundredThousandRoundsOfGraphsAdvanceByThemselves) {
  constexpr int kSize = 4, kRounds = 20, kReplays = 5'000, kKept = kRounds;
  FlagRanks ranks(GetParam(), kSize, 4, 1001, kKept);
  std::vector<cudaGraphExec_t> graphs(kSize);
  for (int rank = 0; rank < kSize; ++rank) {
    must(cudaStreamBeginCapture(ranks.stream(rank), cudaStreamCaptureModeThreadLocal));
    for (int round = 0; round < kRounds; ++round) ranks.enqueue(rank, round, round);
    cudaGraph_t graph;
    must(cudaStreamEndCapture(ranks.stream(rank), &graph));
    must(cudaGraphInstantiate(&graphs[static_cast<size_t>(rank)], graph, 0));
    must(cudaGraphDestroy(graph));
  }
  for (int replay = 0; replay < kReplays; ++replay) {
    for (int rank = 0; rank < kSize; ++rank)
      must(cudaGraphLaunch(graphs[static_cast<size_t>(rank)], ranks.stream(rank)));
    // A full stream queue would block the host while other ranks are still waiting to be launched.
    if (replay % 50 == 49) {
      ranks.finish();
      ASSERT_EQ(ranks.wrong(0, 1), 0) << "replay " << replay;
    }
  }
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(ranks.record(rank).is_set, 0u);
  for (auto* graph : graphs) must(cudaGraphExecDestroy(graph));
}

// One rank's kernel never comes. The others must leave in time and name it, and later rounds must
// end immediately.
TEST_P(FlagsOnGpu, ARankThatDoesNotComeIsNamed) {
  constexpr int kSize = 3;
  FlagRanks ranks(GetParam(), kSize, 2, 101, 8);
  for (int round = 0; round < 4; ++round)
    for (int rank = 0; rank < kSize; ++rank) ranks.enqueue(rank, round, round);
  for (int round = 4; round < 8; ++round)
    for (const int rank : {0, 2}) ranks.enqueue(rank, round, -1, kSoon);
  ranks.finish();
  for (const int rank : {0, 2}) {
    const auto& record = ranks.record(rank);
    ASSERT_EQ(record.is_set, 1u);
    EXPECT_EQ(record.rank, rank);
    EXPECT_EQ(record.expected, 5u);
  }
  EXPECT_TRUE(ranks.record(0).peer == 1 || ranks.record(2).peer == 1);
}

}  // namespace
}  // namespace tutti
