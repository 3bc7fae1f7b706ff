#pragma once

#include <gtest/gtest.h>

#include <random>

#include "tests/backends/fake_nccl/fake_nccl.h"
#include "tests/tensor/fake_device.h"

namespace tutti::test {

/// Every test of the program begins with a fresh fake NCCL and fails if the fake has complaints.
class FakeNcclJudge final : public testing::EmptyTestEventListener {
 public:
  /// Must be called while the program starts.
  static bool install() {
    testing::UnitTest::GetInstance()->listeners().Append(new FakeNcclJudge);
    return true;
  }
  void OnTestStart(const testing::TestInfo&) override {
    // The device outlives every communicator, since streams may run late.
    static FakeDevice device;
    FakeNccl::Settings settings;
    settings.seed = std::random_device{}();
    testing::Test::RecordProperty("seed", std::to_string(settings.seed));
    FakeNccl::begin(settings);
  }
  void OnTestEnd(const testing::TestInfo&) override {
    if (FakeNccl::living() > 0)
      ADD_FAILURE() << "fake NCCL: " << FakeNccl::living()
                    << " communicators are neither destroyed nor aborted to the end";
    for (const auto& complaint : FakeNccl::complaints())
      ADD_FAILURE() << "fake NCCL: " << complaint;
  }
};

}  // namespace tutti::test
