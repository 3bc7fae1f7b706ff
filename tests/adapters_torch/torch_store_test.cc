// A store of torch's as one of Tutti's.

#include "tutti/adapters/torch/torch_store.h"

#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tests/backends/conformance/store_conformance.h"
#include "tests/support/expect_error.h"
#include "tutti/adapters/torch/process_group.h"

namespace tutti::test {
namespace {

std::function<std::shared_ptr<Store>()> hash_store() {
  return
      [store = c10::make_intrusive<c10d::HashStore>()] { return torch::make_torch_store(store); };
}
std::function<std::shared_ptr<Store>()> prefix_store() {
  return [store = c10::make_intrusive<c10d::HashStore>()] {
    return torch::make_torch_store(c10::make_intrusive<c10d::PrefixStore>("within", store));
  };
}
INSTANTIATE_TEST_SUITE_P(TorchStore, StoreConformance,
                         testing::Values(StoreMaker{"Hash", hash_store},
                                         StoreMaker{"Prefix", prefix_store}),
                         [](const auto& info) { return info.param.name; });

TEST(TorchStore, WaitingAndFailingAreOneLineEach) {
  struct Broken final : c10d::HashStore {
    std::vector<uint8_t> compareSet(const std::string&, const std::vector<uint8_t>&,
                                    const std::vector<uint8_t>&) override {
      TORCH_CHECK(false, "no room");
    }
  };
  expect_error(ErrorCode::timeout, "no rank set the key \"x\" of torch's store before the deadline",
               [] { hash_store()()->get("x", Deadline::after(0.05)); });
  expect_error(ErrorCode::unavailable, "torch's store: compareSet of \"x\" failed: no room",
               [] { torch::make_torch_store(c10::make_intrusive<Broken>())->set_once("x", "y"); });
  expect_error(ErrorCode::unavailable, "torch's store: compareSet of \"", [] {
    torch::ProcessGroup::create(c10::make_intrusive<Broken>(), 0, 2, "0", std::chrono::seconds(1));
  });
}

}  // namespace
}  // namespace tutti::test
