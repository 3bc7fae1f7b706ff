#include "tutti/core/communicator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <mutex>
#include <numeric>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/wait_until.h"
#include "tutti/core/arena.h"
#include "tutti/kernels/convert.h"

namespace tutti {
namespace {

using test::run_threads;

TEST(Communicator, AllreduceAveragesOverAnyNumberOfRanks) {
  for (const int size : {1, 2, 3, 4, 5, 7})
    run_threads(size, [&](Communicator& comm) {
      std::vector<float> values(1000, static_cast<float>(comm.rank()));
      comm.allreduce("a", values).wait();
      for (const float value : values) ASSERT_FLOAT_EQ(value, static_cast<float>(size - 1) / 2);
    });
}

TEST(Communicator, BlockingCallsDriveThemselves) {
  run_threads(3, [](Communicator& comm) {
    // On a busy machine the background thread may often drive the engine before this thread does.
    std::vector<double> drove(1, 0);
    for (int attempt = 0; attempt < 50 && drove[0] == 0; ++attempt) {
      for (int i = 0; i < 200; ++i) {
        std::vector<double> values(3, comm.rank());
        comm.allreduce_blocking("a", values, ReduceOp::sum);
        ASSERT_EQ(values[2], 3);
      }
      drove[0] = comm.statistics().caller_runs > 0 ? 1 : 0;
      comm.allreduce_blocking("drove", drove, ReduceOp::min);
    }
    EXPECT_EQ(drove[0], 1);
  });
}

TEST(Communicator, EveryOtherCollective) {
  for (const int size : {1, 2, 3, 4})
    run_threads(size, [&](Communicator& comm) {
      const int rank = comm.rank();
      std::vector<int> word(5, rank == size - 1 ? 7 : 0);
      comm.broadcast("broadcast", word, size - 1).wait();
      EXPECT_EQ(word, std::vector<int>(5, 7));

      std::vector<int> mine(static_cast<size_t>(rank) + 1, rank);
      auto gathered = comm.allgather("allgather", mine);
      std::vector<int> expected;
      for (int r = 0; r < size; ++r) expected.insert(expected.end(), static_cast<size_t>(r) + 1, r);
      const auto all = gathered.output().span<int>();
      EXPECT_EQ(std::vector<int>(all.begin(), all.end()), expected);
      EXPECT_EQ(gathered.received_counts().size(), static_cast<size_t>(size));

      std::vector<float> ones(static_cast<size_t>(size) * 2 + 1, 1.0f);
      const auto share =
          comm.reduce_scatter("reduce_scatter", ones, {.op = ReduceOp::sum}).output();
      EXPECT_EQ(share.count(), rank == 0 ? 3 : 2);
      EXPECT_EQ(share.as<float>()[1], static_cast<float>(size));

      std::vector<int> parts(static_cast<size_t>(size));
      std::iota(parts.begin(), parts.end(), rank * 100);
      const auto exchanged = comm.alltoall("alltoall", parts).output();
      for (int r = 0; r < size; ++r) EXPECT_EQ(exchanged.as<int>()[r], r * 100 + rank);

      std::vector<float> input(4, 1.0f), output(4);
      comm.reduce("reduce", input, output, 0).wait();
      EXPECT_EQ(output[3], rank == 0 ? static_cast<float>(size) : 0.0f);

      const auto at_root = comm.gather("gather", mine, 0).output();
      EXPECT_EQ(at_root.count(), rank == 0 ? size * (size + 1) / 2 : 0);

      std::iota(parts.begin(), parts.end(), 5);
      const auto dealt = comm.scatter("scatter", parts, 0).output();
      ASSERT_EQ(dealt.count(), 1);
      EXPECT_EQ(dealt.as<int>()[0], 5 + rank);

      if (size > 1) {
        std::vector<int> letter(3, rank);
        if (rank == 0) comm.send("letter", letter, 1).wait();
        if (rank == 1) comm.recv("letter", letter, 0).wait();
        EXPECT_EQ(letter[0], rank == 1 ? 0 : rank);
      }
      comm.barrier().wait();
      comm.barrier_blocking();

      const std::string text = "hello";
      const auto bytes = comm.broadcast_bytes(
          "bytes", std::as_bytes(std::span(text.data(), rank == 0 ? text.size() : 0)));
      EXPECT_EQ(bytes.size(), text.size());
    });
}

TEST(Communicator, AHandleIsOfItsCommunicatorAlone) {
  TensorHandle kept;
  run_threads(1, [&](Communicator& comm) {
    std::vector<float> values(8, 1);
    kept = comm.declare("declared", Shape{8}, DataType::f32);
    comm.allreduce(kept, values).wait();
  });
  // The next communicator may get the same address.
  for (int i = 0; i < 5; ++i)
    run_threads(1, [&](Communicator& comm) {
      std::vector<float> values(8, 1);
      EXPECT_THROW(comm.allreduce(kept, values), Error);
      comm.allreduce(comm.declare("declared", Shape{8}, DataType::f32), values).wait();
    });
}

// A program that numbers its tensors by the step uses such names.
TEST(Communicator, NamesThatNeverComeAgainKeepNoMemory) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer's memory is not counted";
#endif
  run_threads(
      2,
      [](Communicator& comm) {
        std::vector<float> values(8, 1);
        int step = 0;
        const auto steps = [&](int count) {
          for (const int end = step + count; step < end; ++step) {
            const auto name = "a name of this step alone " + std::to_string(step);
            const std::vector<NamedTensor> members = {{name, values}};
            comm.grouped_allreduce("group: " + name, members).wait();
            comm.allreduce(comm.declare(name + "'s", Shape{8}, DataType::f32), values).wait();
          }
          comm.barrier_blocking();
          return ::mallinfo2().uordblks;
        };
        const auto before = steps(1000);
        const auto after = steps(3000);  // their names alone take more memory than may be added
        EXPECT_LT(after, before + (1 << 20)) << "of rank " << comm.rank();
      },
      [](Options& options) {
        options.cache_capacity = 16;
        options.replay = false;  // a replayed step has a test of its own
      });
}

TEST(Communicator, ARankThatHasJoinedSendsAndReceivesNothing) {
  for (const int size : {2, 3})
    run_threads(size, [](Communicator& comm) {
      std::vector<float> values(4, 1.0f);
      if (comm.rank() == 0) {
        test::expect_error(
            ErrorCode::mismatch,
            "\"x\": send cannot run while rank 1 has joined (is out of data); only allreduce can. "
            "Nothing was changed.",
            [&] { comm.send("x", values, 1).wait(); });
        test::expect_error(ErrorCode::mismatch, "\"y\": recv cannot run while rank 1 has joined",
                           [&] { comm.recv("y", values, 1).wait(); });
      }
      comm.join().wait();
      comm.allreduce("still works", values, ReduceOp::sum).wait();
      EXPECT_EQ(values[0], static_cast<float>(comm.size()));
    });
}

TEST(Communicator, RanksThatDisagreeEndNothingOfOtherPairsOfThatName) {
  run_threads(4, [](Communicator& comm) {
    std::vector<float> ten(10, 1.0f), five(5, 2.0f);
    if (comm.rank() == 2) {
      auto work = comm.recv("x", five, 3);
      comm.barrier("two waits").wait();
      comm.barrier("they disagreed").wait();
      work.wait();
      EXPECT_EQ(five, std::vector<float>(5, 3.0f));
      comm.barrier("over").wait();
      return;
    }
    comm.barrier("two waits").wait();
    const auto disagrees = [](const auto& call) {
      test::expect_error(ErrorCode::mismatch, "both must name", call);
    };
    if (comm.rank() == 0) disagrees([&] { comm.send("x", ten, 1).wait(); });
    if (comm.rank() == 1) disagrees([&] { comm.recv("x", five, 0).wait(); });
    comm.barrier("they disagreed").wait();
    std::vector<float> threes(5, 3.0f);
    if (comm.rank() == 3) comm.send("x", threes, 2).wait();
    comm.barrier("over").wait();
  });
}

// A joined rank takes part with the neutral element of the operation, which is 0 only for sums.
TEST(Communicator, AJoinedRankChangesNoResultOfAnyOp) {
  run_threads(3, [](Communicator& comm) {
    if (comm.rank() == 2) {
      comm.join().wait();
      return;
    }
    const auto reduced = [&](const char* name, ReduceOp op, std::vector<int32_t> values) {
      comm.allreduce(name, values, op).wait();
      return values;
    };
    const int32_t mine = -5 - comm.rank();
    using Values = std::vector<int32_t>;
    EXPECT_EQ(reduced("max", ReduceOp::max, {mine, -1}), (Values{-5, -1}));
    EXPECT_EQ(reduced("min", ReduceOp::min, {-mine, 1}), (Values{5, 1}));
    EXPECT_EQ(reduced("product", ReduceOp::product, {mine, 3}), (Values{30, 9}));
    EXPECT_EQ(reduced("band", ReduceOp::band, {-1, 6}), (Values{-1, 6}));
    EXPECT_EQ(reduced("bor", ReduceOp::bor, {4, 6}), (Values{4, 6}));
    EXPECT_EQ(reduced("bxor", ReduceOp::bxor, {4 + comm.rank(), 6}), (Values{1, 0}));
    std::vector<float> floats{-3.0f, static_cast<float>(mine)};
    comm.allreduce("floats", floats, ReduceOp::max).wait();
    EXPECT_EQ(floats, (std::vector<float>{-3.0f, -5.0f}));
    for (const DataType wire : {DataType::f16, DataType::bf16})
      for (const ReduceOp op : {ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
        std::vector<float> same{-2.0f, 1.0f};
        const auto name = std::string(to_string(wire)) + std::string(to_string(op));
        comm.allreduce(name, same, {.op = op, .wire = wire}).wait();
        EXPECT_EQ(same, (std::vector<float>{op == ReduceOp::product ? 4.0f : -2.0f, 1.0f})) << name;
      }
    comm.join().wait();
  });
}

// Scaling before and after the sum differ for integers, which are rounded, and for sums that
// overflow unscaled.
TEST(Communicator, PrescaleComesBeforeTheSumAndPostscaleAfterIt) {
  run_threads(2, [](Communicator& comm) {
    for (int step = 0; step < 6; ++step) {  // also replayed
      std::vector<int32_t> before{3, 3}, after{3, 3};
      auto first = comm.allreduce("before", before, {.op = ReduceOp::sum, .prescale = 0.5});
      comm.allreduce("after", after, {.op = ReduceOp::sum, .postscale = 0.5}).wait();
      first.wait();
      ASSERT_EQ(before, (std::vector<int32_t>{2, 2})) << step;  // 1 + 1
      ASSERT_EQ(after, (std::vector<int32_t>{3, 3})) << step;   // 6 / 2
      std::vector<Float16> large(4, to_float16(60'000.0f));
      comm.allreduce("large", large, {.op = ReduceOp::sum, .prescale = 0.25, .postscale = 2})
          .wait();
      ASSERT_EQ(to_float(large[3]), 60'000.0f) << step;
    }
  });
}

TEST(Communicator, CallbacksRunOnceAndMaySubmit) {
  run_threads(2, [](Communicator& comm) {
    std::atomic<int> calls{0};
    std::vector<float> first(4, 1), second(4, 1);
    comm.allreduce("first", first).then([&](std::exception_ptr error) {
      EXPECT_FALSE(error);
      ++calls;
      comm.allreduce("second", second).then([&](std::exception_ptr) { ++calls; });
    });
    for (int i = 0; i < 5000 && calls < 2; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(calls, 2);
  });
}

TEST(Communicator, ManyThreadsSubmitAndWait) {
  run_threads(2, [](Communicator& comm) {
    constexpr int kThreads = 4, kCalls = 100;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread)
      threads.emplace_back([&, thread] {
        for (int call = 0; call < kCalls; ++call) {
          std::vector<float> values(16, static_cast<float>(thread));
          comm.allreduce("t" + std::to_string(thread), values, ReduceOp::sum).wait();
          ASSERT_EQ(values[3], static_cast<float>(2 * thread));
        }
      });
    for (auto& thread : threads) thread.join();
  });
}

TEST(Communicator, AProcessMakesSeveralOneAfterAnother) {
  test::run_processes(2, [](Communicator& first) {
    for (int i = 0; i < 3; ++i) {
      const auto next = Communicator::create(first.options());
      std::vector<float> values(10, 1.0f);
      next->allreduce("x", values, ReduceOp::sum).wait();
      first.allreduce("x", values, ReduceOp::sum).wait();
      ASSERT_EQ(values[9], 4.0f);
    }
  });
}

TEST(Communicator, TakesPointersScalarsAndConstantInput) {
  run_threads(2, [](Communicator& comm) {
    const float own = static_cast<float>(comm.rank() + 1);
    float numbers[3] = {own, own, own};
    comm.allreduce("pointer", &numbers[0], 2, ReduceOp::sum).wait();
    EXPECT_EQ(numbers[1], 3.0f);
    EXPECT_EQ(numbers[2], own);
    comm.allreduce_blocking("pointer", &numbers[1], 2, ReduceOp::sum);
    EXPECT_EQ(numbers[1], 6.0f);
    EXPECT_EQ(numbers[2], 3.0f);
    EXPECT_EQ(comm.allreduce_blocking("mean", own), 1.5f);
    EXPECT_EQ(comm.allreduce_blocking("sum", int64_t{comm.rank() + 1}, ReduceOp::sum), 3);
    const std::vector<float> constant(100, own);
    for (int step = 0; step < 8; ++step) {
      std::vector<float> result(100, -1.0f);
      comm.allreduce("constant", constant, result, {.op = ReduceOp::sum}).wait();
      ASSERT_EQ(result[99], 3.0f);
      ASSERT_EQ(constant[99], own);
    }
  });
}

TEST(GradientArena, ReducesInItsOwnMemory) {
  run_threads(2, [](Communicator& comm) {
    GradientArena gradients(comm, {{"w1", {100}}, {"b1", {3}}});
    for (int step = 0; step < 20; ++step) {
      auto* w1 = gradients["w1"].as<float>();
      std::fill(w1, w1 + 100, static_cast<float>(comm.rank()));
      gradients["b1"].as<float>()[0] = 4;
      gradients.ready("b1");
      EXPECT_EQ(test::error_of([&] { gradients.wait(); }).tensor(), "w1");
      gradients.ready("w1");
      gradients.wait();
      ASSERT_EQ(w1[99], 0.5f);
      ASSERT_EQ(gradients["b1"].as<float>()[0], 4.0f);
    }
    EXPECT_THROW(gradients["w2"], Error);
  });
}

TEST(Idle, NobodyWakes) {
  constexpr int kRanks = 4;
  // Ranks meet at a barrier outside the communicator, because a message over it would wake the
  // others.
  std::barrier meet(kRanks);
  run_threads(kRanks, [&](Communicator& comm) {
    std::vector<float> values(100, 1.0f);
    // A thread that is still awake when work arrives needs no wake-up.
    uint64_t least = 0;
    for (int round = 0; round < 200 && least == 0; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const auto work = comm.allreduce("by the background thread", values);
      EXPECT_TRUE(test::wait_until([&] { return work.done(); }));
      least = comm.allreduce_blocking("wakeups", comm.statistics().wakeups, ReduceOp::min);
    }
    EXPECT_GT(least, 0u);
    comm.barrier_blocking();
    meet.arrive_and_wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto before = comm.statistics().wakeups;
    std::this_thread::sleep_for(std::chrono::seconds(2));
    EXPECT_LE(comm.statistics().wakeups - before, 1u);
    meet.arrive_and_wait();
    comm.barrier_blocking();
  });
}

}  // namespace
}  // namespace tutti
