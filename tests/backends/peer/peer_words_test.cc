// The flags that a rank publishes in memory that all peers can read, and device memory that
// processes share.

#include "tutti/backends/peer/peer_words.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/tensor/fake_device.h"
#include "tutti/base/error.h"

namespace tutti::test {
namespace {

constexpr Device kOneFake{DeviceKind::fake, 0};

TEST(PeerWords, ABlockIsUsedAgainAndKeepsItsNumbers) {
  FakeDevice device;
  PeerWords* first = nullptr;
  uint64_t before = 0;
  {
    const OwnWords own(device);
    first = &own.words();
    before = load_word(first->packed);
    store_word(own.words().packed, before + 7);
  }
  const OwnWords again(device);
  EXPECT_EQ(&again.words(), first);
  EXPECT_EQ(load_word(again.words().packed), before + 7);
  const OwnWords another(device);
  EXPECT_NE(&another.words(), first);
}

TEST(PeerWords, ABlockThatIsKeptIsNobodyElses) {
  FakeDevice device;
  PeerWords* first = nullptr;
  {
    OwnWords own(device);
    first = &own.words();
    own.keep();
  }
  const OwnWords again(device);
  EXPECT_NE(&again.words(), first);
}

TEST(PeerWords, WhatIsNotThereIsOneError) {
  FakeDevice device;
  const OwnWords own(device);
  expect_error(ErrorCode::unavailable, "is not a rank of this job any more", [&] {
    TheirWords(device, ::getpid(), own.file(), load_word(own.words().token) + 1);
  });
  expect_error(ErrorCode::unavailable, "ranks of backend peer are processes of one user",
               [&] { TheirWords(device, ::getpid(), 9999, 0); });
}

// Uses another process, since no process maps its own memory.
TEST(PeerWords, AnotherProcessMapsWordsAndMemory) {
  FakeDevice device;
  const OwnWords own(device);
  DeviceHandle handle;
  auto* memory = static_cast<char*>(device.allocate_shared(100, kOneFake, handle));
  EXPECT_THROW(device.map_shared(handle, kOneFake), Error);
  memory[99] = 'a';
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    const TheirWords theirs(device, parent, own.file(), load_word(own.words().token));
    store_word(theirs.words().reduced, 77);
    auto* mapped = static_cast<char*>(device.map_shared(handle, kOneFake));
    const bool is_one = device.map_shared(handle, kOneFake) == mapped && mapped[99] == 'a';
    mapped[99] = 'b';
    ::_exit(is_one ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(memory[99], 'b');
  EXPECT_EQ(load_word(own.words().reduced), 77u);
  device.free_shared(memory);
  DeviceHandle again;
  EXPECT_EQ(device.allocate_shared(4000, kOneFake, again), memory);
  EXPECT_EQ(again, handle);
  device.free_shared(memory);
}

// Ranks that each see one device of the same identity share it; without an identity they cannot
// know.
TEST(PeerChoice, AutoIsPeerWhereRanksShareTheirOnlyDevice) {
  for (const std::string identity : {"0000:18:00.0", ""}) {
    FakeDevice device({.identity = identity});
    run_threads(2, [&](Communicator& comm) {
      EXPECT_EQ(comm.backend(), identity.empty() ? "memory" : "peer");
      Tensor tensor({1000}, DataType::f32, kOneFake);
      std::fill_n(tensor.as<float>(), 1000, static_cast<float>(comm.rank() + 1));
      comm.allreduce("gradient", tensor, ReduceOp::sum).wait();
      EXPECT_THAT(tensor.span<float>(), testing::Each(3.0f));
    });
  }
}

}  // namespace
}  // namespace tutti::test
