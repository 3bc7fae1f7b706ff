// The peer backend on the fake device, with ranks that are threads: the conformance suite, and the
// cases where ranks, streams or the device misbehave.

#include <gmock/gmock.h>

#include "tests/backends/conformance/backend_conformance.h"
#include "tests/backends/conformance/device_conformance.h"
#include "tests/support/expect_error.h"

namespace tutti::test {
namespace {

// The device outlives every communicator, since streams may run late.
class OneFakeDevice final : public testing::EmptyTestEventListener {
 public:
  static bool install() {
    testing::UnitTest::GetInstance()->listeners().Append(new OneFakeDevice);
    return true;
  }
  void OnTestStart(const testing::TestInfo&) override {
    static FakeDevice device({.seed = std::random_device{}()});
  }
};
const bool has_device = OneFakeDevice::install();

Backends peer_backends(int size) {
  return make_backends(find_backend("peer"), size, [](Context& context) {
    context.executor.segment_bytes = kTestSegmentBytes;
  });
}

INSTANTIATE_TEST_SUITE_P(Peer, BackendConformance, testing::ValuesIn(device_makers(peer_backends)),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Peer, DeviceConformance, testing::Values(peer_backends));

// Many buckets, started in a different order on each rank, with some ranks far ahead.
TEST(Peer, NoOrderOfOperationsMakesRanksWaitForEachOther) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  constexpr int kSize = 3, kBuckets = 40;
  auto ends = peer_backends(kSize);
  std::vector<std::vector<uint64_t>> orders(kSize);
  for (auto& order : orders) {
    for (uint64_t tag = 1; tag <= kBuckets; ++tag) order.push_back(tag);
    std::shuffle(order.begin(), order.end(), random);
  }
  Buckets buckets;
  while (buckets.size() < kSize * kBuckets) {
    const auto rank = random() % kSize;
    if (!orders[rank].empty()) {
      const auto tag = orders[rank].back();
      orders[rank].pop_back();
      buckets.push_back(std::make_unique<Bucket>(*ends[rank], tag, 100 + 700 * (tag % 5)));
    }
    ends[random() % kSize]->progress();
  }
  drive(ends, buckets);
  expect_all(buckets, OperationState::done, kSize);
}

// A bucket that waits for the user's stream must not delay buckets started before it.
TEST(Peer, ABucketThatIsNotReadyHoldsNoOther) {
  HeldStream user;
  auto ends = peer_backends(2);
  Bucket early(*ends[0], 1), late(*ends[0], 2, 1000, 0, user.ready());
  Bucket early_there(*ends[1], 1), late_there(*ends[1], 2);
  drive(ends, [&] { return early.is_over() && early_there.is_over(); });
  EXPECT_FALSE(late.is_over());
  EXPECT_FALSE(late_there.is_over());
  user.let_go();
  drive(ends, [&] { return late.is_over() && late_there.is_over(); });
  EXPECT_THAT(late_there.tensor.span<float>(), testing::Each(2.0f));
}

TEST(Peer, AnOperationKnowsThatARankHasNotStartedIt) {
  auto ends = peer_backends(2);
  Bucket first(*ends[0], 1);
  drive_for(ends, 0.05);
  EXPECT_FALSE(first.is_over());
  EXPECT_TRUE(first.operation->lacks_ranks());
  Bucket second(*ends[1], 1);
  drive(ends, [&] { return first.is_over() && second.is_over(); });
  EXPECT_THAT(first.tensor.span<float>(), testing::Each(2.0f));
}

// A rank may give up a bucket at any moment. All ranks that started the bucket then give it up,
// nothing writes to it later, and the next buckets run.
TEST(Peer, ABucketThatAnotherRankGivesUpIsOverOnAll) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  auto ends = peer_backends(3);
  for (uint64_t tag = 1; tag <= 60; tag += 2) {
    Buckets buckets;
    const auto cancelled_at = random() % 30;
    const bool third_starts = random() % 3 != 0, late = random() % 2 == 0;
    for (size_t rank = 0; rank < 2; ++rank)
      buckets.push_back(std::make_unique<Bucket>(*ends[rank], tag, 5000));
    if (third_starts && !late) buckets.push_back(std::make_unique<Bucket>(*ends[2], tag, 5000));
    for (uint64_t i = 0; i < cancelled_at; ++i) ends[random() % 3]->progress();
    buckets[random() % buckets.size()]->operation->cancel();
    for (auto& end : ends) end->progress();
    if (third_starts && late) buckets.push_back(std::make_unique<Bucket>(*ends[2], tag, 5000));
    for (auto& bucket : buckets) bucket->operation->cancel();
    drive(ends, buckets);
    for (auto& bucket : buckets) EXPECT_EQ(bucket->state, OperationState::failed);
    buckets.clear();
    for (auto& end : ends) buckets.push_back(std::make_unique<Bucket>(*end, tag + 1));
    drive(ends, buckets);
    expect_all(buckets, OperationState::done, 3);
  }
}

// After abort() on all ranks, pending operations end soon and free their memory.
TEST(Peer, WhatIsPendingEndsWithAbort) {
  auto ends = peer_backends(3);
  Buckets buckets;
  for (uint64_t tag = 1; tag <= 3; ++tag)
    for (auto& end : ends) buckets.push_back(std::make_unique<Bucket>(*end, tag, 100'000));
  for (int i = 0; i < 3; ++i)
    for (auto& end : ends) end->progress();
  const auto begin = Clock::now();
  for (auto& end : ends)
    std::thread([&] { end->abort(Error(ErrorCode::closed, "enough")); }).join();
  drive(ends, buckets);
  buckets.clear();
  // Each of the three ranks may wait up to 3 s for the work on its streams.
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(12));
}

// One rank gives up everything while its peers' kernels may use its memory. No kernel may touch
// that memory after it is freed (address sanitizer checks this).
TEST(Peer, MemoryOfARankThatGivesUpIsTouchedNoMore) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20; ++round) {
    auto ends = peer_backends(3);
    Buckets theirs, own;
    for (uint64_t tag = 1; tag <= 4; ++tag) {
      own.push_back(std::make_unique<Bucket>(*ends[0], tag, 100'000));
      for (const size_t rank : {1u, 2u})
        theirs.push_back(std::make_unique<Bucket>(*ends[rank], tag, 100'000));
    }
    for (uint64_t i = 0, rounds = random() % 20; i < rounds; ++i) ends[random() % 3]->progress();
    ends[0]->abort(Error(ErrorCode::closed, "enough"));
    own.clear();
    for (int i = 0; i < 20; ++i)
      for (auto& end : ends) end->progress();
    for (auto& bucket : theirs) bucket->is_over();
    for (const size_t rank : {1u, 2u}) ends[rank]->abort(Error(ErrorCode::closed, "enough"));
  }
}

// abort() ends a rank as the engine does after an error: the rank no longer receives from peers,
// but the peers' streams continue. Their stores to this rank's memory must be finished before its
// operations end.
TEST(Peer, MemoryOfARankThatEndedIsWrittenNoMore) {
  constexpr int64_t kCount = 100'000;  // each rank reduces a part of this
  HeldStream user;
  auto ends = peer_backends(2);
  Bucket own(*ends[0], 1, kCount);
  ends[0]->progress();
  // The stream of rank 1 waits for the user's stream, then reduces into the memory of both ranks.
  Bucket theirs(*ends[1], 1, kCount, 0, user.ready());
  for (const auto until = Deadline::after(10); theirs.operation->lacks_ranks();) {
    ASSERT_FALSE(until.passed());
    ends[1]->progress();
  }
  ends[0]->abort(Error(ErrorCode::closed, "enough"));
  ends[0]->progress();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    user.let_go();
  });
  own.operation.reset();
  std::fill_n(own.tensor.as<float>(), kCount, -7.0f);
  later.join();
  user.synchronize();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_THAT(own.tensor.span<float>(), testing::Each(-7.0f));
  ends[1]->abort(Error(ErrorCode::closed, "enough"));
}

TEST(Peer, RanksOfSeveralHostsAreTold) {
  auto context = thread_context(0, 2, make_memory_store());
  context.places[1].host = "there";
  context.places[1].host_name = "far";
  context.deadline = Deadline::after(5);
  expect_error(ErrorCode::unavailable,
               "rank 0: backend peer works within one host, but rank 0 runs on localhost and rank "
               "1 on far; use peer+tcp",
               [&] { find_backend("peer").connect(context); });
  context.places[1] = context.places[0];
  context.places[1].pid_space = 4;
  context.store = make_memory_store();
  expect_error(ErrorCode::unavailable, "are in different PID namespaces",
               [&] { find_backend("peer").connect(context); });
  auto many = thread_context(0, 65, make_memory_store());
  expect_error(ErrorCode::unavailable, "backend peer takes 64 ranks at most, and there are 65",
               [&] { find_backend("peer").connect(many); });
}

TEST(Peer, WithoutADeviceThereIsNoBackend) {
  auto& device = device_runtime(DeviceKind::fake);
  register_device_runtime(DeviceKind::fake, nullptr);
  auto context = thread_context(0, 1, make_memory_store());
  expect_error(ErrorCode::unavailable, "there is no GPU that peer could use",
               [&] { find_backend("peer").connect(context); });
  register_device_runtime(DeviceKind::fake, &device);
}

TEST(Peer, WhatIsNoRecordIsRefused) {
  auto context = thread_context(0, 2, make_memory_store());
  context.store->set("peer/words/1", "1 2 three");
  expect_error(ErrorCode::unavailable,
               "rank 1 wrote something into the store that does not describe its shared memory",
               [&] { find_backend("peer").connect(context); });
}

}  // namespace
}  // namespace tutti::test
