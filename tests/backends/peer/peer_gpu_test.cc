// The peer backend on a GPU that all ranks share. Ranks are threads, or processes that this program
// forks before it has touched CUDA. Without a GPU every test is skipped with a reason.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/backends/conformance/gpu_cases.h"
#include "tutti/base/deadline.h"

namespace tutti::test {
namespace {

class PeerGpu : public testing::Test {
 protected:
  void SetUp() override {
    const auto reason = why_no_gpu();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

void share_the_gpu(Options& options) {
  options.backend = "peer";
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 0);
}

void check_peer(Communicator& comm) {
  Gpu gpu;
  EXPECT_EQ(comm.backend(), "peer");
  check_steps(comm, gpu, false);
  check_kinds(comm, gpu);
  comm.barrier("end").wait();
}

// Large tensors: every rank reduces a share, and a bucket has many pieces.
void check_large(Communicator& comm) {
  Gpu gpu;
  const auto size = static_cast<float>(comm.size());
  for (int round = 0; round < 20; ++round) {
    std::vector<Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 5; ++i)
      tensors.push_back(gpu.make(
          std::vector<float>(200'000 + static_cast<size_t>(i), static_cast<float>(round))));
    for (size_t i = 0; i < tensors.size(); ++i)
      works.push_back(
          comm.allreduce("large" + std::to_string(i), gpu.view(tensors[i]), ReduceOp::sum));
    for (auto& work : works) work.wait();
    for (const auto& tensor : tensors)
      for (const float value : gpu.read<float>(tensor))
        ASSERT_EQ(value, static_cast<float>(round) * size);
  }
}

// Each round starts from the rank's own numbers. Hosts and streams are late at random.
void check_rounds(Communicator& comm, int rounds) {
  constexpr int64_t kCount = 1000, kMuch = 4 << 20;
  Gpu gpu;
  auto& runtime = device_runtime(DeviceKind::cuda);
  std::minstd_rand random(static_cast<unsigned>(comm.rank()) + 1);
  const auto source = gpu.make(numbers<float>(kCount, comm.rank()));
  const auto tensor = gpu.make(numbers<float>(kCount, 0));
  const Tensor much(Shape{kMuch}, DataType::f32, kGpu), more(Shape{kMuch}, DataType::f32, kGpu);
  std::vector<float> expected(kCount);
  for (int rank = 0; rank < comm.size(); ++rank) {
    const auto theirs = numbers<float>(kCount, rank);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += theirs[i];
  }
  for (int round = 0; round < rounds; ++round) {
    const auto delay = random() % 1000;
    if (delay < 4) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    if (delay > 980)
      runtime.copy(more.data(), much.data(), static_cast<size_t>(more.bytes()), gpu.stream());
    runtime.copy(tensor.data(), source.data(), kCount * sizeof(float), gpu.stream());
    auto work = comm.allreduce("round", gpu.view(tensor), ReduceOp::sum);
    work.wait_on(gpu.stream());
    if (round % 64 == 63) {
      ASSERT_EQ(gpu.read<float>(tensor), expected) << "round " << round;
    }
    work.wait();
  }
}

// Runs allreduces until rank 2 dies; rank 2 stores the time in `died`.
void check_death(Communicator& comm, std::atomic<int64_t>& died) {
  const auto now = [] { return Clock::now().time_since_epoch().count(); };
  Gpu gpu;
  const auto tensor = gpu.make(std::vector<float>(1 << 20, 1));
  try {
    for (int step = 0;; ++step) {
      if (comm.rank() == 2 && step == 100) {
        died = now();
        ::kill(::getpid(), SIGKILL);
      }
      auto work = comm.allreduce("gradient", gpu.view(tensor), ReduceOp::average);
      work.wait_on(gpu.stream());
      work.wait();
    }
  } catch (const Error& error) {
    const std::chrono::duration<double> seconds{Clock::duration(now() - died)};
    EXPECT_LT(seconds.count(), 3) << error.what();
    EXPECT_EQ(error.rank(), 2) << error.what();
  }
}

// Processes run first, because the tests with threads load CUDA into this process.
TEST_F(PeerGpu, ProcessesShareAGpu) {
  for (const int size : {1, 2, 4}) run_processes(size, check_peer, share_the_gpu, 60);
  run_processes(2, check_large, share_the_gpu, 60);
}

TEST_F(PeerGpu, ProcessesForTenThousandRounds) {
  run_processes(
      2, [](Communicator& comm) { check_rounds(comm, 10'000); }, share_the_gpu, 120);
}

TEST_F(PeerGpu, AKilledProcessIsNamedWithinThreeSeconds) {
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto& died = *new (page) std::atomic<int64_t>(0);
  run_processes(
      3, [&](Communicator& comm) { check_death(comm, died); }, share_the_gpu, 60, 2);
  EXPECT_GT(died.load(), 0);
  ::munmap(page, 4096);
}

TEST_F(PeerGpu, ThreadsShareAGpu) {
  for (const int size : {1, 2, 4}) run_threads(size, check_peer, share_the_gpu, 60);
  run_threads(4, check_large, share_the_gpu, 60);
}

TEST_F(PeerGpu, ThreadsForAHundredThousandRounds) {
  run_threads(
      4, [](Communicator& comm) { check_rounds(comm, 100'000); }, share_the_gpu, 170);
}

}  // namespace
}  // namespace tutti::test
