#pragma once

// What every backend of devices promises of buckets, with the backend as the parameter: a test
// program includes this once and instantiates the suites.

#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "tests/backends/conformance/device_bucket.h"
#include "tests/backends/conformance/on_device.h"

namespace tutti::test {

/// Makers for the conformance suite of backends of devices. Memory of the host goes other backends'
/// ways, which have been under tsan with them.
inline std::vector<BackendMaker> device_makers(Backends (*make)(int size)) {
  std::vector<BackendMaker> all{{"DeviceMemory", [make](int size) {
                                   auto backends = make(size);
                                   for (auto& backend : backends)
                                     backend = on_device(std::move(backend));
                                   return backends;
                                 }}};
#ifndef __SANITIZE_THREAD__
  all.push_back({"HostMemory", make});
#endif
  return all;
}

class DeviceConformance : public testing::TestWithParam<Backends (*)(int size)> {};

TEST_P(DeviceConformance, ABucketOpensItsGateWhenItIsUnpacked) {
  for (const int size : {1, 2, 3, 5}) {
    auto ends = GetParam()(size);
    for (const int64_t count : {0, 1, 1000, 100'000}) {
      Buckets buckets;
      for (auto& end : ends)
        buckets.push_back(std::make_unique<Bucket>(*end, static_cast<uint64_t>(count) + 1, count));
      drive(ends, buckets);
      expect_all(buckets, OperationState::done, static_cast<float>(size));
    }
  }
}

TEST_P(DeviceConformance, AVetoedBucketWritesNothingAndOpensNoGate) {
  auto ends = GetParam()(3);
  for (const size_t vetoing : {0u, 1u, 2u}) {
    Buckets buckets;
    for (size_t rank = 0; rank < 3; ++rank)
      buckets.push_back(
          std::make_unique<Bucket>(*ends[rank], vetoing + 1, 1000, rank == vetoing ? 1 : 0));
    drive(ends, buckets);
    expect_all(buckets, OperationState::vetoed, 1);
  }
}

// A device that failed for good says so to every call, those of destructors too.
TEST_P(DeviceConformance, ADeviceThatFailedDoesNotEndTheProcess) {
  auto& device = static_cast<FakeDevice&>(device_runtime(DeviceKind::fake));
  const auto begin = Clock::now();
  {
    auto ends = GetParam()(2);
    Bucket first(*ends[0], 1), second(*ends[1], 1);
    drive(ends, [&] { return first.is_over() && second.is_over(); });
    Bucket under_way(*ends[0], 2);
    device.fail_for_good();
    under_way.operation.reset();
    EXPECT_EQ(*under_way.gate, 1u);
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(8));
  device.fail_for_good(false);
}

}  // namespace tutti::test
