#pragma once

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/backends/fake_nccl/fake_nccl.h"
#include "tests/tensor/fake_device.h"

namespace tutti::test {

/// Makes this process one rank on the tests' device and the tests' NCCL, in a job whose ranks are
/// processes and share `folder`. Outlives its communicators, since streams may run late.
class FakeNcclRank {
 public:
  explicit FakeNcclRank(const std::string& folder) {
    FakeNccl::Settings settings;
    settings.seed = std::random_device{}();
    settings.folder = folder;
    FakeNccl::begin(settings);
  }

  /// What the fake has to say when all communicators are gone.
  static std::vector<std::string> last_complaints() {
    // Aborting has threads of its own, which may take a moment.
    for (int i = 0; i < 3000 && FakeNccl::living() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    auto all = FakeNccl::complaints();
    if (FakeNccl::living() > 0)
      all.emplace_back("a communicator was neither destroyed nor aborted");
    return all;
  }

 private:
  FakeDevice device_;
};

}  // namespace tutti::test
