// The nccl backend on the fake device and the fake NCCL: the conformance suite, and the cases where
// NCCL misbehaves.

#include <gmock/gmock.h>

#include "tests/backends/conformance/backend_conformance.h"
#include "tests/backends/conformance/device_conformance.h"
#include "tests/backends/fake_nccl/judge.h"
#include "tests/support/expect_error.h"
#include "tests/support/wait_until.h"

namespace tutti::test {
namespace {

const bool judged = FakeNcclJudge::install();

Backends nccl_backends(int size) {
  return make_backends(find_backend("nccl"), size, [](Context& context) {
    context.settings["TUTTI_BACKEND_LIBRARY"] = TUTTI_FAKE_NCCL;
    context.executor.segment_bytes = kTestSegmentBytes;
  });
}

INSTANTIATE_TEST_SUITE_P(Nccl, BackendConformance, testing::ValuesIn(device_makers(nccl_backends)),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Nccl, DeviceConformance, testing::Values(nccl_backends));

TEST(Nccl, AnOperationInNoQueueKnowsThatARankHasNotStartedIt) {
  auto ends = nccl_backends(2);
  Bucket first(*ends[0], 1, 1000, 0, nullptr, kNoQueue);
  drive_for(ends, 0.05);
  EXPECT_FALSE(first.is_over());
  EXPECT_TRUE(first.operation->lacks_ranks());
  Bucket second(*ends[1], 1, 1000, 0, nullptr, kNoQueue);
  drive(ends, [&] { return !first.operation->lacks_ranks() && !second.operation->lacks_ranks(); });
  drive(ends, [&] { return first.is_over() && second.is_over(); });
  EXPECT_THAT(first.tensor.span<float>(), testing::Each(2.0f));
}

TEST(Nccl, LargeBucketsLiveInRegisteredMemoryWhereThatIsSafe) {
  for (const int version : {22809, 21899}) {
    FakeNccl::begin({.version = version});
    auto ends = nccl_backends(2);
    for (uint64_t tag = 1; tag <= 3; ++tag) {
      Bucket first(*ends[0], tag, 500'000), second(*ends[1], tag, 500'000);
      drive(ends, [&] { return first.is_over() && second.is_over(); });
      EXPECT_THAT(second.tensor.span<float>(), testing::Each(2.0f));
      EXPECT_EQ(FakeNccl::registrations(), version > 21900 ? 2 : 0);
    }
    EXPECT_EQ(FakeNccl::registrations(), 0);
    EXPECT_EQ(FakeNccl::registrations_made(), version > 21900 ? 6 : 0);
  }
}

TEST(Nccl, MemoryThatIsUsedAgainIsRegisteredOnce) {
  auto ends = nccl_backends(2);
  Bucket first(*ends[0], 1, 500'000), second(*ends[1], 1, 500'000);
  for (uint64_t tag = 2; tag <= 4; ++tag) {
    drive(ends, [&] { return first.is_over() && second.is_over(); });
    first.start(*ends[0], tag);
    second.start(*ends[1], tag);
  }
  drive(ends, [&] { return first.is_over() && second.is_over(); });
  EXPECT_THAT(second.tensor.span<float>(), testing::Each(16.0f));
  EXPECT_EQ(FakeNccl::registrations_made(), 2);
}

// When a rank gives up a bucket, the other ranks still call NCCL for it. A rank that has called
// already must not call again: its next calls would meet calls for other buckets.
TEST(Nccl, ABucketThatAnotherRankGivesUpIsCalledOnce) {
  auto ends = nccl_backends(2);
  {
    Bucket first(*ends[0], 1), second(*ends[1], 1);
    first.operation->cancel();
    drive(ends, [&] { return first.is_over() && second.is_over(); });
    EXPECT_EQ(first.state, OperationState::failed);
  }
  for (uint64_t tag = 2; tag <= 4; ++tag) {
    Bucket first(*ends[0], tag), second(*ends[1], tag);
    drive(ends, [&] { return first.is_over() && second.is_over(); });
    for (auto* bucket : {&first, &second}) {
      ASSERT_EQ(bucket->state, OperationState::done);
      EXPECT_THAT(bucket->tensor.span<float>(), testing::Each(2.0f));
    }
  }
}

// After abort() on all ranks, pending operations end soon and free their memory, whichever rank
// hangs.
TEST(Nccl, AHangEndsWithAbort) {
  auto ends = nccl_backends(3);
  FakeNccl::hang(1);
  Buckets buckets;
  for (uint64_t tag = 1; tag <= 3; ++tag)
    for (auto& end : ends) buckets.push_back(std::make_unique<Bucket>(*end, tag));
  drive_for(ends, 0.1);
  for (auto& bucket : buckets) EXPECT_FALSE(bucket->is_over());
  const auto begin = Clock::now();
  for (auto& end : ends)
    std::thread([&] { end->abort(Error(ErrorCode::closed, "enough")); }).join();
  drive(ends, buckets);
  for (auto& bucket : buckets) EXPECT_EQ(bucket->state, OperationState::failed);
  buckets.clear();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
  EXPECT_TRUE(test::wait_until([&] { return FakeNccl::living() <= 0; }));
  // Per rank: two streams, and the communicator they were split from.
  EXPECT_EQ(FakeNccl::aborts(), 9);
}

// Operations are let go of while they are on their way on a device that failed for good: nothing is
// waited for, and streams of the user that wait for them go on.
TEST(Nccl, OperationsOnADeviceThatFailedAreLetGoOf) {
  auto& device = static_cast<FakeDevice&>(device_runtime(DeviceKind::fake));
  const auto begin = Clock::now();
  {
    auto ends = nccl_backends(2);
    FakeNccl::hang(1);
    Bucket first(*ends[0], 1), second(*ends[1], 1), behind(*ends[0], 2);
    drive_for(ends, 0.1);
    for (auto* bucket : {&first, &second, &behind}) EXPECT_FALSE(bucket->is_over());
    device.fail_for_good();
    for (auto* bucket : {&first, &second, &behind}) {
      bucket->operation.reset();
      EXPECT_EQ(*bucket->gate, 1u);
    }
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));
  device.fail_for_good(false);
}

// A device may hold an operation longer than the host waits for it, and write the operation's flag
// later. Until then no other operation may use that flag, because it would seem to end too early.
TEST(Nccl, AnOperationThatTheDeviceHoldsKeepsItsWord) {
  auto& device = device_runtime(DeviceKind::fake);
  HeldStream user;
  auto ends = nccl_backends(2);
  Bucket held(*ends[0], 1, 1000, 0, user.ready());
  const auto until = Deadline::after(0.1);
  while (!until.passed()) ends[0]->progress();
  const auto begin = Clock::now();
  held.operation.reset();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(*held.gate, 1u);
  ends.clear();
  // Takes all flags that were given back, and more.
  std::vector<uint64_t*> words(20);
  for (auto& word : words) word = device.take_word();
  std::atomic_ref(*held.gate).store(0);
  user.let_go();
  EXPECT_TRUE(test::wait_until(
      [&] { return std::atomic_ref(*held.gate).load(std::memory_order_acquire) != 0; }, 10))
      << "the device never came to it";
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the flag is written after the gate
  for (auto* word : words) EXPECT_EQ(std::atomic_ref(*word).load(std::memory_order_acquire), 0u);
  for (auto* word : words) device.give_back_word(word);
}

TEST(Nccl, AnAsynchronousErrorIsFoundAndSaysWhatNcclSaid) {
  auto ends = nccl_backends(2);
  Bucket first(*ends[0], 1), second(*ends[1], 1);
  FakeNccl::fail(0, 6);
  FakeNccl::hang(1);
  Bucket late(*ends[0], 2);
  drive(ends, [&] { return late.is_over(); });
  EXPECT_EQ(late.state, OperationState::failed);
  ASSERT_NE(late.operation->failure(), nullptr);
  EXPECT_THAT(late.operation->failure()->what(), testing::HasSubstr("remote process exited"));
  for (auto& end : ends) end->abort(Error(ErrorCode::closed, "enough"));
  drive(ends, [&] { return first.is_over() && second.is_over(); });
}

TEST(Nccl, WhatIsMissingIsOneErrorOnAllRanks) {
  struct Row {
    std::string library;
    int version;
    std::string says;
  };
  for (const auto& [library, version, says] :
       {Row{"/nowhere/libnccl.so.2", 22809, "NCCL cannot be loaded"},
        Row{TUTTI_FAKE_NCCL, 21705, "is NCCL 2.17.5, but backend nccl needs 2.18.0 or later"}}) {
    FakeNccl::begin({.version = version});
    const auto heard =
        connect_refusals(find_backend("nccl"), 2, ErrorCode::unavailable,
                         [&, &library = library, &version = version](Context& context) {
                           context.settings["TUTTI_BACKEND_LIBRARY"] =
                               context.rank == 1 || version < 22000 ? library : TUTTI_FAKE_NCCL;
                         });
    for (const auto& text : heard)
      EXPECT_THAT(text, testing::AllOf(testing::StartsWith("rank "), testing::HasSubstr(says)));
    EXPECT_EQ(heard[0], heard[1]);
  }
}

TEST(Nccl, SettingsReachEveryCommunicator) {
  const auto connect = [](const std::string& config) {
    return make_backends(find_backend("nccl"), 2, [&](Context& context) {
      context.settings["TUTTI_BACKEND_LIBRARY"] = TUTTI_FAKE_NCCL;
      context.settings["TUTTI_NCCL_CONFIG"] = config;
    });
  };
  connect({});
  EXPECT_THAT(FakeNccl::configs(), testing::AllOf(testing::SizeIs(6), testing::Each("")));
  FakeNccl::begin({});
  connect(
      "min_ctas=4,max_ctas=16,cga_cluster_size=2,net_name=Socket,split_share=1,traffic_class=3,"
      "channels_per_net_peer=2");
  EXPECT_THAT(FakeNccl::configs(),
              testing::AllOf(testing::SizeIs(6),
                             testing::Each("cga_cluster_size=2 min_ctas=4 max_ctas=16 "
                                           "net_name=Socket split_share=1 traffic_class=3 "
                                           "channels_per_net_peer=2")));
  // An older NCCL takes a shorter struct. Settings that it does not know are refused.
  FakeNccl::begin({.version = 21805});
  connect("max_ctas=8");
  EXPECT_THAT(FakeNccl::configs(), testing::Each("max_ctas=8"));
  EXPECT_STREQ(error_of([&] { connect("max_ctas=8,traffic_class=3"); }).what(),
               "rank 0: TUTTI_NCCL_CONFIG: traffic_class needs NCCL 2.25.0, but NCCL 2.18.5 is "
               "here; leave it out or install a newer one");
}

TEST(Nccl, TwoRanksOnOneGpuHearWhatToDo) {
  FakeNccl::begin({.refuse_shared_device = true});
  const auto heard = connect_refusals(
      find_backend("nccl"), 2, ErrorCode::invalid_argument,
      [](Context& context) { context.settings["TUTTI_BACKEND_LIBRARY"] = TUTTI_FAKE_NCCL; });
  for (const auto& text : heard)
    EXPECT_THAT(text, testing::AllOf(testing::StartsWith("two ranks use one GPU"),
                                     testing::HasSubstr("NCCL_HOSTID"),
                                     testing::HasSubstr("NCCL_MULTI_RANK_GPU_ENABLE")));
}

TEST(Nccl, WithoutADeviceThereIsNoBackend) {
  auto& device = device_runtime(DeviceKind::fake);
  register_device_runtime(DeviceKind::fake, nullptr);
  auto context = thread_context(0, 1, make_memory_store());
  context.settings["TUTTI_BACKEND_LIBRARY"] = TUTTI_FAKE_NCCL;
  expect_error(ErrorCode::unavailable, "there is no GPU that NCCL could use",
               [&] { find_backend("nccl").connect(context); });
  register_device_runtime(DeviceKind::fake, &device);
}

}  // namespace
}  // namespace tutti::test
