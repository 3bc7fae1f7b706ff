// Some failed Works were never waited for. The tests check which of them are logged, and how often.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using test::run_threads;

// The Work of a group is kept for the next use of its name, and dropped when there are many names.
TEST(UnseenFailures, AGroupThatFailedUnseenIsLoggedOnce) {
  std::atomic<int> lines{0};
  run_threads(
      2,
      [&](Communicator& comm) {
        std::vector<float> values(4, 1.0f);
        const auto run = [&](const std::string& group, int64_t count) {
          return comm.grouped_allreduce(
              group, std::vector<NamedTensor>{
                         {group + "/x", TensorView(values.data(), Shape{count}, DataType::f32)}});
        };
        for (const std::string group : {"used again", "given up"}) {
          static_cast<void>(
              run(group, comm.rank() == 0 ? 3 : 4));  // a mismatch, for which no thread waits
          comm.allreduce("behind it", values).wait();
        }
        for (int i = 0; i < 3; ++i) run("used again", 4).wait();
        for (int i = 0; i < 1100; ++i) run(fmt::format("{}", i), 1).wait();
        comm.barrier_blocking();
        EXPECT_EQ(lines, 4) << "two on each rank";
        comm.barrier_blocking();
      },
      [&](Options& options) {
        options.cache_capacity = 1024;
        options.log = [&](LogLevel, std::string_view line) {
          EXPECT_NE(line.find("failed and nobody waited for it"), line.npos) << line;
          ++lines;
        };
      });
}

// An exception may leave the scope of the communicator in the middle of a backward pass.
TEST(UnseenFailures, OfManyWorksThatClosingEndsOneIsLogged) {
  std::mutex mutex;
  std::vector<std::string> lines;
  std::atomic<bool> is_closed{false};
  run_threads(
      2,
      [&](Communicator& comm) {
        std::vector<float> values(30, 1.0f);
        if (comm.rank() == 0) {
          for (size_t i = 0; i < 30; ++i)
            static_cast<void>(
                comm.allreduce(fmt::format("gradient {}", i), std::span(values).subspan(i, 1)));
          comm.close();
          is_closed = true;
        }
        // Rank 1 stays meanwhile. Otherwise each operation of rank 0 would fail because rank 1 has
        // left.
        for (const auto until = Deadline::after(20); !is_closed && !until.passed();)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
      },
      [&](Options& options) {
        options.log = [&](LogLevel, std::string_view line) {
          const std::lock_guard lock(mutex);
          lines.emplace_back(line);
        };
      });
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("failed and nobody waited for it"), lines[0].npos) << lines[0];
  EXPECT_NE(lines[0].find("others that nobody waited for are not listed"), lines[0].npos)
      << lines[0];
}

// A callback receives the error, so nothing is logged.
TEST(UnseenFailures, AFailureThatACallbackSeesIsNotLogged) {
  std::atomic<int> lines{0};
  run_threads(
      2,
      [&](Communicator& comm) {
        const auto run = [&](int64_t count) {
          const Tensor values(Shape{count}, DataType::f32);
          comm.allreduce("x", values).then([](std::exception_ptr error) { EXPECT_TRUE(error); });
        };
        // Rank 0's callback is attached before rank 1 submits the mismatching tensor.
        if (comm.rank() == 0) run(3);
        comm.barrier_blocking();
        if (comm.rank() == 1) run(4);
        for (int i = 0; i < 3; ++i) comm.barrier("behind it").wait();
        const Tensor same(Shape{4}, DataType::f32);
        comm.allreduce("x", same).wait();
      },
      [&](Options& options) {
        options.log = [&](LogLevel, std::string_view line) {
          lines += line.find("nobody waited for it") != line.npos;
        };
      });
  EXPECT_EQ(lines, 0);
}

// If the ranks disagree about the group itself, each of its tensors gets an error.
TEST(UnseenFailures, OfSeveralErrorsInAGroupTheFirstIsTold) {
  run_threads(2, [](Communicator& comm) {
    const Tensor x(Shape{3}, DataType::f32), y(Shape{3}, DataType::f32);
    auto group = comm.grouped_allreduce(comm.rank() == 0 ? "group" : "another",
                                        std::vector<NamedTensor>{{"x", x}, {"y", y}});
    const auto error = test::expect_error(ErrorCode::mismatch, "", [&] { group.wait(); });
    EXPECT_EQ(error.tensor(), "x") << error.what();
    test::still_works(comm);
  });
}

}  // namespace
}  // namespace tutti
