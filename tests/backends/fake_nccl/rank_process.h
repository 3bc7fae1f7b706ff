#pragma once

#include <random>
#include <string>
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
    auto all = FakeNccl::complaints();
    if (FakeNccl::living() > 0)
      all.emplace_back("a communicator is not destroyed and not aborted to the end");
    return all;
  }

 private:
  FakeDevice device_;
};

}  // namespace tutti::test
