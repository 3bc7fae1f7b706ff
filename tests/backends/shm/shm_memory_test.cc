// The memory that ranks share. Offsets that a peer sends are checked, freed memory goes back to the
// host, and the backend for threads detects ranks in other processes.

#include "tutti/backends/shm/shm_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/backends/shm/shm_fixture.h"
#include "tutti/backends/shared/shared_memory.h"
#include "tutti/backends/shm/rendezvous.h"

namespace tutti::test {
namespace {

/// The memories of two ranks in this process, and their files.
struct TwoMemories {
  std::vector<std::unique_ptr<SharedMemory>> of = std::vector<std::unique_ptr<SharedMemory>>(2);
  std::vector<Descriptor> files = std::vector<Descriptor>(2);
};

TwoMemories connect_memories(const std::function<Context(int)>& context) {
  TwoMemories memories;
  run_ranks(2, [&](int rank) {
    const auto own = static_cast<size_t>(rank);
    auto file = SharedFile::create(shared_block_bytes());
    memories.files[own] = Descriptor(::fcntl(file.descriptor(), F_DUPFD_CLOEXEC, 0));
    auto ends = connect_through_memory(context(rank), others(rank, 2), file.descriptor());
    std::vector<const std::unique_ptr<ShmEnds>*> by_rank(2, nullptr);
    for (auto& [peer, end] : ends) by_rank[static_cast<size_t>(peer)] = &end;
    memories.of[own] = make_shm_memory(rank, 2, std::move(file), by_rank);
  });
  return memories;
}

TEST_F(Shm, WhatIsThereForGoodOutlivesTheRankThatWroteIt) {
  auto memories = connect_memories([&](int rank) { return context(rank, 2); });
  auto lent = memories.of[1]->allocate_for_good(10'000);
  auto given_back = memories.of[1]->allocate(10'000);
  const std::byte* seen[2] = {};
  for (const auto* region : {lent.get(), given_back.get()}) {
    std::memset(region->data(), 7, region->bytes());
    seen[region == lent.get() ? 0 : 1] =
        memories.of[0]->at(1, region->handle().offset, region->bytes());
  }
  lent.reset();
  given_back.reset();
  memories.of[1].reset();
  EXPECT_EQ(seen[0][9'999], std::byte{7});
  EXPECT_EQ(seen[1][9'999], std::byte{0});
}

TEST_F(Shm, APlaceOutsideOfThePeersMemoryIsRefused) {
  const auto memories = connect_memories([&](int rank) { return context(rank, 2); });
  auto& zero = *memories.of[0];
  auto& one = *memories.of[1];
  const auto region = one.allocate(10'000);
  std::memset(region->data(), 7, region->bytes());
  const uint64_t place = one.place_of(region->data(), region->bytes());
  ASSERT_NE(place, SharedMemory::kNowhere);
  EXPECT_EQ(zero.at(1, place, region->bytes())[region->bytes() - 1], std::byte{7});
  struct stat status {};
  ASSERT_EQ(::fstat(memories.files[1].get(), &status), 0);
  const auto end = static_cast<uint64_t>(status.st_size);
  const std::vector<std::pair<uint64_t, size_t>> forged = {
      {end, 1},
      {end - 1, 2},
      {0, end + 1},
      {uint64_t{1} << 60, 64},
      // The sum of offset and length wraps around to a small number.
      {SharedMemory::kNowhere, 1},
      {SharedMemory::kNowhere - 63, 64},
      {SharedMemory::kNowhere - 10, 100},
      {64, SIZE_MAX - 8},
      {SharedMemory::kNowhere, SIZE_MAX},
  };
  for (const auto& [at, bytes] : forged) {
    const auto error = error_of([&] { zero.at(1, at, bytes); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << at << " " << bytes;
    EXPECT_EQ(error.rank(), 1);
    EXPECT_EQ(std::string(error.what())
                  .find("rank 1 named " + std::to_string(bytes) + " bytes at " +
                        std::to_string(at) + " of its shared memory, which has "),
              0u)
        << error.what();
  }
  EXPECT_NO_THROW(zero.at(1, end - 1, 1));
}

// Touching shared memory without a page is a SIGBUS if the host has no page left, so pages are
// allocated in advance.
TEST_F(Shm, MemoryThatIsUsedAgainIsAllocatedAgain) {
  const auto memories = connect_memories([&](int rank) { return context(rank, 2); });
  constexpr size_t kBytes = 1 << 20;
  const auto allocated = [&] {
    struct stat status {};
    EXPECT_EQ(::fstat(memories.files[0].get(), &status), 0);
    EXPECT_GE(status.st_size, status.st_blocks * 512);
    return status.st_blocks * 512;
  };
  auto region = memories.of[0]->allocate(kBytes);
  const auto before = allocated();
  const auto place = memories.of[0]->place_of(region->data(), kBytes);
  region->data()[0] = std::byte{1};
  region.reset();
  EXPECT_EQ(allocated(), before - static_cast<int64_t>(kBytes));
  region = memories.of[0]->allocate(kBytes);
  EXPECT_EQ(memories.of[0]->place_of(region->data(), kBytes), place);
  EXPECT_EQ(allocated(), before);
  EXPECT_EQ(region->data()[0], std::byte{0});
}

TEST_F(Shm, MemoryBackendRefusesOtherProcesses) {
  const auto told = context(1, 2, 10);
  RankProcess other([&] {
    try {
      find_backend("memory").open(context(0, 2, 0.5), others(0, 2));
    } catch (const Error& error) {
      return error.code() == ErrorCode::timeout ? 7 : 8;
    }
    return 9;
  });
  auto alone = thread_context(0, 3, make_memory_store());
  alone.deadline = Deadline::after(0.3);
  const auto in_vain = error_of([&] { find_backend("memory").open(alone, others(0, 3)); });
  EXPECT_EQ(in_vain.code(), ErrorCode::timeout);
  EXPECT_STREQ(
      in_vain.what(),
      "rank 0 waited for ranks 1 2 to connect through memory, without success; did it die?");
  const auto error = error_of([&] { find_backend("memory").open(told, others(1, 2)); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_NE(std::string(error.what()).find("use shm or tcp"), std::string::npos) << error.what();
  EXPECT_EQ(other.wait(), 7);
}

}  // namespace
}  // namespace tutti::test
