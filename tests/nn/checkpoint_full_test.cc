// A checkpoint larger than any limit of 31 or 32 bits.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>

#include "tutti/adapters/nn/checkpoint.h"

namespace tutti::nn {
namespace {

TEST(CheckpointsInFull, MoreThanTwoGigabytesComeBack) {
  constexpr int64_t kBytes = (int64_t{1} << 31) + 12'345;
  // Pages that are only read take no memory.
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Checkpoint checkpoint;
  checkpoint.tensors.emplace(
      "large", Tensor(TensorView(memory, Shape{kBytes}, DataType::u8),
                      std::shared_ptr<void>(memory, [](void* at) { ::munmap(at, kBytes); })));
  checkpoint.tensors.emplace("small", Tensor(Shape{2}, DataType::i32));
  checkpoint.tensors.at("large").as<uint8_t>()[kBytes - 1] = 7;
  checkpoint.tensors.at("small").as<int32_t>()[1] = 9;
  const auto file =
      testing::TempDir() + "nn_checkpoint_full_" + std::to_string(::getpid()) + ".safetensors";
  checkpoint.write(file);
  checkpoint = {};
  const auto read = Checkpoint::read(file);
  std::filesystem::remove(file);
  EXPECT_EQ(read.tensors.at("large").bytes(), kBytes);
  EXPECT_EQ(read.tensors.at("large").as<uint8_t>()[kBytes - 1], 7);
  EXPECT_EQ(read.tensors.at("small").as<int32_t>()[1], 9);
}

}  // namespace
}  // namespace tutti::nn
