#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/backends/conformance/backend_conformance.h"

namespace tutti::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Shm, BackendConformance,
                         testing::Values(BackendMaker{"shm", [](int size) {
                                                        return make_backends(
                                                            find_backend("shm"), size,
                                                            [](Context& context) {
                                                              context.executor.segment_bytes =
                                                                  kTestSegmentBytes;
                                                            });
                                                      }}));

// Every call asks whether memory is shared, from any thread and without waiting.
TEST(ShmMemory, PlacesAreFoundWhileRegionsComeAndGo) {
  auto ends = make_backends(find_backend("shm"), 2);
  auto& end = *ends[0];
  constexpr size_t kBytes = 8192;
  const auto kept = end.allocate(kBytes, Device{});
  std::vector<std::byte> own(kBytes);
  std::atomic<bool> over{false};
  std::atomic<int> asked{0};
  std::thread asking([&] {
    for (; !over || asked < 1000; ++asked) {
      ASSERT_TRUE(end.shares(kept->data(), kBytes));
      ASSERT_TRUE(end.shares(kept->data() + kBytes - 1, 1));
      ASSERT_FALSE(end.shares(kept->data() + 1, kBytes + (64 << 20)));
      ASSERT_FALSE(end.shares(own.data(), 1));
    }
  });
  std::mt19937 random(3);
  std::vector<std::unique_ptr<Region>> regions;
  for (int i = 0; i < 2000; ++i) {
    if (regions.size() < 40 && random() % 2 == 0) {
      regions.push_back(end.allocate(4096 * (1 + random() % 3), Device{}));
      EXPECT_TRUE(end.shares(regions.back()->data(), regions.back()->bytes()));
    } else if (!regions.empty()) {
      const auto gone = regions.begin() + static_cast<std::ptrdiff_t>(random() % regions.size());
      const auto* address = (*gone)->data();
      regions.erase(gone);
      EXPECT_FALSE(end.shares(address, 1));
    }
  }
  over = true;
  asking.join();
}

}  // namespace
}  // namespace tutti::test
