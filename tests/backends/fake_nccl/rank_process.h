#pragma once

#include <random>
#include <string>
#include <vector>

#include "tests/backends/fake_nccl/fake_nccl.h"
#include "tests/tensor/fake_device.h"

namespace tutti::test {

/// Makes this process one rank on the fake device and the fake NCCL, in a job whose ranks are
/// processes that share `folder`. It outlives its communicators, since streams may run late.
class FakeNcclRank {
 public:
  explicit FakeNcclRank(const std::string& folder) {
    FakeNccl::Settings settings;
    settings.seed = std::random_device{}();
    settings.folder = folder;
    FakeNccl::begin(settings);
  }

  /// Returns the fake's complaints after all communicators are gone.
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
