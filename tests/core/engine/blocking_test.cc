// Blocking allreduce. The calling thread runs it alone where memory is shared; elsewhere it is
// matched by name.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/core/arena.h"

namespace tutti {
namespace {

void every_size(Communicator& comm) {
  for (const int64_t count : {0, 1, 7, 22, 23, 500, 16'384, 16'385, 70'000, 300'001}) {
    std::vector<double> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>(i % 100) + comm.rank();
    comm.allreduce_blocking("x", values, ReduceOp::sum);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i],
                static_cast<double>(i % 100) * comm.size() + comm.size() * (comm.size() - 1) / 2.0)
          << i << " of " << count;
  }
}

TEST(Blocking, EverySizeOverThreads) {
  for (const int size : {1, 2, 3, 5}) test::run_threads(size, every_size);
}

TEST(Blocking, EverySizeOverProcesses) { test::run_processes(3, every_size); }

TEST(Blocking, BetweenNamedOperations) {
  test::run_threads(3, [](Communicator& comm) {
    for (int i = 0; i < 100; ++i) {
      std::vector<float> named(300, 1.0f), lone(1, 2.0f);
      auto work = comm.allreduce("named", named, ReduceOp::sum);
      comm.allreduce_blocking("lone", lone, ReduceOp::sum);
      work.wait();
      ASSERT_EQ(named[299], 3.0f);
      ASSERT_EQ(lone[0], 6.0f);
    }
  });
}

TEST(Blocking, RanksThatDisagreeAllHearTheSameAndGoOn) {
  std::mutex mutex;
  std::vector<std::string> texts;
  test::run_threads(3, [&](Communicator& comm) {
    const auto attempt = [&](std::string_view name, TensorView view, ReduceOp op) {
      const auto text =
          test::refusal([&] { comm.allreduce_blocking(name, view, op); }, ErrorCode::mismatch);
      mutex.lock();
      texts.push_back(text);
      mutex.unlock();
      float one = 1;
      comm.allreduce_blocking("after", std::span(&one, 1), ReduceOp::sum);
      EXPECT_EQ(one, 3.0f);
    };
    const bool odd = comm.rank() == 2;
    std::vector<float> few(4, 1.0f), many(200'000, 1.0f);
    std::vector<double> wide(4, 1.0);
    attempt(odd ? "loss" : "accuracy", few, ReduceOp::sum);
    attempt("x", odd ? TensorView(many) : TensorView(few), ReduceOp::sum);
    attempt("x", odd ? TensorView(wide) : TensorView(few), ReduceOp::sum);
    attempt("x", few, odd ? ReduceOp::average : ReduceOp::sum);
    EXPECT_EQ(few, std::vector<float>(4, 1.0f));
    EXPECT_EQ(many[0], 1.0f);
  });
  ASSERT_EQ(texts.size(), 12u);
  EXPECT_EQ(
      std::count(
          texts.begin(), texts.end(),
          "rank 0 called \"accuracy\" with f32[4] and op sum, rank 1 called \"accuracy\" with "
          "f32[4] and op sum, rank 2 called \"loss\" with f32[4] and op sum; blocking calls must "
          "have the same order and the same arguments on all ranks. Nothing was changed."),
      3);
}

TEST(Blocking, FromSeveralThreadsOfARank) {
  // Each thread has its own communicator, because the blocking calls of one communicator have one
  // order.
  test::run_threads(2, [](Communicator& comm) {
    const auto other = comm.split(0, comm.rank());
    std::thread thread([&] {
      for (int i = 0; i < 300; ++i) {
        float value = 1;
        other->allreduce_blocking("other", std::span(&value, 1), ReduceOp::sum);
        ASSERT_EQ(value, 2.0f);
      }
    });
    for (int i = 0; i < 300; ++i) {
      float value = 2;
      comm.allreduce_blocking("own", std::span(&value, 1), ReduceOp::sum);
      ASSERT_EQ(value, 4.0f);
    }
    thread.join();
  });
}

TEST(Blocking, BadInputIsRefusedBeforeAnythingIsSent) {
  test::run_threads(2, [](Communicator& comm) {
    std::vector<float> values(3, 1.0f);
    test::expect_refused("an operation needs a name by which the ranks match it",
                         [&] { comm.allreduce_blocking("", values); });
    test::expect_refused("\"x\": op band cannot be applied to f32",
                         [&] { comm.allreduce_blocking("x", values, ReduceOp::band); });
    test::expect_refused("\"x\": the tensor f32[3] of rank ", [&] {
      comm.allreduce_blocking("x", TensorView(nullptr, Shape{3}, DataType::f32));
    });
    comm.allreduce_blocking("x", values, ReduceOp::sum);
    EXPECT_EQ(values[0], 2.0f);
  });
}

}  // namespace
}  // namespace tutti
