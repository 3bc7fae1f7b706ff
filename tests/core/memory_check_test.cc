// TUTTI_CHECK_MEMORY: a program frees memory while its Work is pending.
#include "tutti/base/process/memory_check.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/wait_until.h"
#include "tutti/tutti.h"

namespace tutti::test {
namespace {

// Owns whole pages, which are really unmapped when they are freed.
class Pages {
 public:
  explicit Pages(size_t bytes)
      : bytes_(bytes),
        memory_(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Pages() { give_back(); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  void give_back() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
    memory_ = nullptr;
  }
  std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  const size_t bytes_;
  void* memory_;
};

TEST(MemoryCheck, SeesEveryPage) {
  constexpr size_t kPage = 4096;
  Pages pages(4 * kPage);
  auto* const bytes = pages.data();
  EXPECT_TRUE(is_still_there(bytes, 4 * kPage));
  EXPECT_TRUE(is_still_there(bytes + 1, 2 * kPage));
  ASSERT_EQ(::munmap(bytes + 2 * kPage, kPage), 0);
  EXPECT_TRUE(is_still_there(bytes, 2 * kPage));
  EXPECT_FALSE(is_still_there(bytes, 2 * kPage + 1));
  EXPECT_FALSE(is_still_there(bytes + 2 * kPage, 1));
  EXPECT_TRUE(is_still_there(bytes + 2 * kPage, 0));
}

TEST(MemoryCheck, ATensorThatWasFreedTooEarlyIsAnErrorOnEveryRank) {
  constexpr int64_t kCount = 1 << 18;
  std::atomic<bool> is_freed{false};
  run_threads(
      2,
      [&](Communicator& comm) {
        Pages gradient(kCount * sizeof(float));
        const auto reduce = [&] {
          return comm.allreduce("w", TensorView(gradient.data(), Shape{kCount}, DataType::f32),
                                ReduceOp::sum);
        };
        reduce().wait();
        comm.barrier_blocking();
        // Rank 1 calls only after rank 0 has freed its tensor.
        EXPECT_TRUE(wait_until([&] { return comm.rank() == 0 || is_freed; }));
        auto work = reduce();
        if (comm.rank() == 0) {
          gradient.give_back();
          is_freed = true;
        }
        const auto error =
            expect_error(ErrorCode::invalid_argument, "rank 0 has freed its memory (1048576 bytes)",
                         [&] { work.wait(); });
        EXPECT_EQ(error.rank(), 0);
        EXPECT_EQ(error.tensor(), "w");
      },
      [](Options& options) {
        options.check_memory = true;
        options.log = [](LogLevel, std::string_view) {};
      });
}

}  // namespace
}  // namespace tutti::test
