// GradientArena: memory that the ranks reduce in place.

#include "tutti/core/arena.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "tests/support/bulk.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/wait_until.h"
#include "tutti/kernels/convert.h"

namespace tutti {
namespace {

// Sizes around the block size, odd ones and none at all.
std::vector<GradientArena::Array> mixed_arrays() {
  std::vector<GradientArena::Array> arrays;
  for (const int64_t count : {1, 3, 16, 17, 0, 1000, 65'535, 65'536, 65'537, 200'001, 5, 64})
    arrays.push_back({fmt::format("w{}", arrays.size()), {count}});
  arrays.push_back({"wide", {777}, DataType::f64});
  arrays.push_back({"half", {333}, DataType::f16});
  return arrays;
}

// Returns the values value, value + 1 ... value + 4 over and over.
std::vector<std::byte> filled(DataType dtype, int64_t count, double value) {
  const std::vector<double> numbers{value, value + 1, value + 2, value + 3, value + 4};
  const size_t size = static_cast<size_t>(size_of(dtype));
  std::vector<std::byte> cycle(numbers.size() * size), all(static_cast<size_t>(count) * size);
  cast(DataType::f64, reinterpret_cast<const std::byte*>(numbers.data()), dtype, cycle.data(), 5);
  test::fill_cycle(all.data(), count, size, cycle);
  return all;
}

void fill(const TensorView& view, double value) {
  const auto bytes = filled(view.dtype(), view.count(), value);
  std::copy(bytes.begin(), bytes.end(), view.data());
}

void expect_filled(const TensorView& view, double value, const std::string& name) {
  const std::span<const std::byte> bytes(view.data(), static_cast<size_t>(view.bytes()));
  ASSERT_TRUE(test::same(bytes, filled(view.dtype(), view.count(), value)))
      << name << ", not " << value << "...";
}

// Many steps, each in another order, so that they are negotiated, replayed and vetoed. tsan is slow
// on few cores; two orders are enough for it.
#ifdef __SANITIZE_THREAD__
constexpr int kSteps = 7;
#else
constexpr int kSteps = 14;
#endif

void reduce_in_any_order(Communicator& comm) {
  const auto arrays = mixed_arrays();
  GradientArena arena(comm, arrays);
  std::mt19937 random(static_cast<unsigned>(comm.rank()) + 7);
  std::vector<size_t> order(arrays.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const double mean = (comm.size() - 1) / 2.0;
  for (int step = 0; step < kSteps; ++step) {
    if (step % 6 == 5) std::shuffle(order.begin(), order.end(), random);
    for (const size_t index : order) {
      fill(arena[arrays[index].name], comm.rank() + 4.0 * (step % 3));
      arena.ready(arrays[index].name);
    }
    arena.wait();
    for (const auto& array : arrays)
      expect_filled(arena[array.name], mean + 4.0 * (step % 3), array.name);
  }
}

void several_buckets(Options& options) {
  options.fusion_bytes = 100'000;
  options.partition_bytes = 90'000;
}

TEST(Arena, ThreadsInAnyOrder) {
  test::run_threads(2, reduce_in_any_order);
  for (const int size : test::rank_counts({1, 2, 3, 4}))
    test::run_threads(size, reduce_in_any_order, several_buckets);
}

TEST(Arena, ProcessesInAnyOrder) { test::run_processes(3, reduce_in_any_order, several_buckets); }

TEST(Arena, WithoutSharedMemory) {
  test::run_processes(2, reduce_in_any_order, [](Options& options) { options.backend = "tcp"; });
}

TEST(Arena, BetweenHosts) { test::run_hosts({0, 0, 1}, reduce_in_any_order, several_buckets); }

TEST(Arena, AfterALossTheOthersMakeOneAnew) {
  for (const char* backend : {"memory", "tcp"})
    test::run_threads(
        3,
        [](Communicator& comm) {
          const std::vector<GradientArena::Array> arrays = {{"a", {100'000}}, {"b", {7}}};
          const auto step = [&](GradientArena& arena, double value) {
            for (const auto& array : arrays) {
              fill(arena[array.name], value);
              arena.ready(array.name);
            }
            arena.wait();
          };
          GradientArena arena(comm, arrays);
          step(arena, comm.rank());
          expect_filled(arena["a"], 1, "a");
          if (comm.rank() == 2) return;
          test::expect_error(ErrorCode::peer_left, "rank 2 ", [&] { step(arena, 1); });
          const auto rest = comm.shrink();
          GradientArena next(*rest, arrays);
          for (int i = 0; i < 5; ++i) step(next, 2 * comm.rank());
          for (const auto& array : arrays) expect_filled(next[array.name], 1, array.name);
        },
        [&](Options& options) { options.backend = backend; });
}

TEST(Arena, BesideASchedule) {
  test::run_threads(3, reduce_in_any_order,
                    [](Options& options) { options.algorithms = "allreduce:0-inf=ring"; });
}

TEST(Arena, ScaledCastAndByOtherOps) {
  test::run_threads(2, [](Communicator& comm) {
    GradientArena scaled(comm, {{"a", {1000}}}, {.op = ReduceOp::sum, .prescale = 0.5});
    GradientArena narrow(comm, {{"a", {1000}}}, {.op = ReduceOp::sum, .wire = DataType::bf16});
    GradientArena largest(comm, {{"a", {1000}}}, {.op = ReduceOp::max, .postscale = 2.0});
    for (int step = 0; step < 8; ++step) {
      for (auto* arena : {&scaled, &narrow, &largest}) {
        const auto view = (*arena)["a"];
        std::fill_n(view.as<float>(), 1000, static_cast<float>(comm.rank() + 1));
        arena->ready("a");
      }
      scaled.wait();
      narrow.wait();
      largest.wait();
      ASSERT_EQ(scaled["a"].as<float>()[999], 1.5f);
      ASSERT_EQ(narrow["a"].as<float>()[999], 3.0f);
      ASSERT_EQ(largest["a"].as<float>()[999], 4.0f);
    }
  });
}

// An arena gives the same bits as the user's own memory.
TEST(Arena, EqualsPrivateTensorsToTheBit) {
  test::run_threads(
      3,
      [](Communicator& comm) {
        constexpr int64_t kCount = 100'003;
        GradientArena arena(comm, {{"g", {kCount}}});
        std::mt19937 random(static_cast<unsigned>(comm.rank()));
        std::normal_distribution<float> normal;
        std::vector<float> own(kCount);
        for (auto& value : own) value = normal(random);
        std::copy(own.begin(), own.end(), arena["g"].as<float>());
        arena.ready("g");
        arena.wait();
        comm.allreduce("private", own).wait();
        EXPECT_TRUE(std::equal(own.begin(), own.end(), arena["g"].as<float>()));
      },
      [](Options& options) { options.determinism = Determinism::rank_order; });
}

TEST(Arena, BlockingCallsOnItsMemory) {
  test::run_processes(2, [](Communicator& comm) {
    GradientArena arena(comm, {{"pad", {3}}, {"g", {500'000}}});
    for (int step = 0; step < 5; ++step) {
      auto* g = arena["g"].as<float>();
      std::fill_n(g, 500'000, static_cast<float>(comm.rank() + step));
      comm.allreduce_blocking("g", arena["g"], ReduceOp::sum);
      ASSERT_EQ(g[0], static_cast<float>(1 + 2 * step));
      ASSERT_EQ(g[499'999], static_cast<float>(1 + 2 * step));
    }
  });
}

// Short arrays get no operation of their own, unless a rank is late.
void short_blocking_calls(Communicator& comm) {
  constexpr int64_t kMost = 300'100;
  GradientArena arena(comm, {{"pad", {3}}, {"g", {kMost}}});
  auto* g = arena["g"].as<float>();
  std::mt19937 random(7);  // the same on all ranks
  std::vector<float> own(100), expected(100), all(kMost);
  const auto n = static_cast<float>(comm.size());
  for (const int64_t count : {1'024, 1'025, 4'096, 4'111, 70'000, 262'144, 262'145, 299'999})
    for (int call = 0; call < 8; ++call) {
      const bool averages = random() % 2 == 0;
      for (size_t i = 0; i < own.size(); ++i) {
        own[i] = static_cast<float>(i) + static_cast<float>(comm.rank());
        const float sum = static_cast<float>(i) * n + n * (n - 1) / 2;
        expected[i] = averages ? sum / n : sum;
      }
      const std::span<float> given(g, static_cast<size_t>(count) + 64);
      test::fill_cycle(given, own);
      const auto late = static_cast<int>(random() % 8);
      if (late == comm.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      comm.allreduce_blocking("g", TensorView(g, Shape{count}, DataType::f32),
                              averages ? ReduceOp::average : ReduceOp::sum);
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_FLOAT_EQ(g[i], expected[i]) << i << " of " << count << ", call " << call;
        expected[i] = g[i];  // the mean, rounded as the library rounds it
      }
      const auto wanted = std::span(all).first(given.size());
      test::fill_cycle(wanted, expected);
      test::fill_cycle(wanted.subspan(static_cast<size_t>(count)), own, count);
      ASSERT_TRUE(test::same(std::as_bytes(given), std::as_bytes(wanted)))
          << "of " << count << ", call " << call;
    }
}

TEST(Arena, ShortBlockingCallsOfThreads) {
  for (const int size : {2, 3}) test::run_threads(size, short_blocking_calls);
}

TEST(Arena, ShortBlockingCallsOfProcesses) { test::run_processes(2, short_blocking_calls); }

TEST(Arena, BlockingCallsThatDisagreeChangeNothing) {
  test::run_threads(2, [](Communicator& comm) {
    GradientArena arena(comm, {{"g", {4096}}});
    auto* g = arena["g"].as<float>();
    std::fill_n(g, 4096, 1.0f);
    const auto attempt = [&](std::string_view name, int64_t count, ReduceOp op) {
      test::expect_error(ErrorCode::mismatch, "rank 1 called \"b\"", [&] {
        comm.allreduce_blocking(name, TensorView(g, Shape{count}, DataType::f32), op);
      });
      std::vector<float> one(1, 1.0f);
      comm.allreduce_blocking("after", one, ReduceOp::sum);
      EXPECT_EQ(one[0], 2.0f);
    };
    const bool odd = comm.rank() == 1;
    for (int i = 0; i < 6; ++i) attempt(odd ? "b" : "a", 4096, ReduceOp::sum);
    attempt("b", odd ? 2048 : 4096, ReduceOp::sum);
    attempt("b", 4096, odd ? ReduceOp::max : ReduceOp::sum);
    EXPECT_EQ(std::count(g, g + 4096, 1.0f), 4096);
    comm.allreduce_blocking("b", arena["g"], ReduceOp::sum);
    EXPECT_EQ(std::count(g, g + 4096, 2.0f), 4096);
  });
}

TEST(Arena, RanksThatMakeOtherArenasHearWhy) {
  test::run_threads(2, [](Communicator& comm) {
    GradientArena arena(comm, {{"a", {comm.rank() == 0 ? 100'000 : 100'001}}});
    // The error ends the step, and the next one may begin.
    for (int step = 0; step < 2; ++step) {
      arena.ready("a");
      const auto error =
          test::expect_error(ErrorCode::mismatch, "rank 0 sent ", [&] { arena.wait(); });
      EXPECT_EQ(error.rank(), 1);
      EXPECT_NE(std::string(error.what()).find(", rank 1 sent "), std::string::npos)
          << error.what();
      EXPECT_FALSE(arena.step_begun());
    }
    std::vector<float> one(1, 1.0f);
    comm.allreduce("after", one, ReduceOp::sum).wait();
    EXPECT_EQ(one[0], 2.0f);
  });
}

TEST(Arena, WrongUseIsNamed) {
  test::run_threads(2, [](Communicator& comm) {
    using test::expect_refused;
    expect_refused("\"a\" is given twice to a GradientArena; each array needs its own name", [&] {
      GradientArena(comm, {{"a", {1}}, {"a", {2}}});
    });
    EXPECT_THROW(GradientArena(comm, {{"a", {-1}}}), Error);
    constexpr int64_t kHalf = int64_t{1} << 41;  // 8 TiB of floats
    expect_refused("\"b\": with it the arrays of a GradientArena exceed 16 TiB; make two arenas",
                   [&] {
                     GradientArena(comm, {{"a", {kHalf}}, {"b", {kHalf}}});
                   });
    expect_refused(
        "\"a\": f32[4] of a GradientArena takes part with zeros if it is left out, which sum and "
        "average allow, but not max",
        [&] {
          GradientArena(comm, {{.name = "a", .shape = {4}, .may_be_left_out = true}},
                        {.op = ReduceOp::max});
        });
    GradientArena arena(comm, {{"weight", {10}}, {"bias", {5}}});
    expect_refused("\"wieght\" is not an array of this GradientArena; did you mean \"weight\"?",
                   [&] { arena.ready("wieght"); });
    expect_refused("\"weight\" has no value in ", [&] { arena.value("weight"); });
    expect_refused(fmt::format("\"weight\": rank {} leaves it out of a step of ", comm.rank()),
                   [&] { arena.leave_out("weight"); });
    arena.ready("bias");
    test::expect_error(ErrorCode::duplicate_name,
                       fmt::format("\"bias\" was declared ready or left out twice in one step on "
                                   "rank {}; call wait() between steps",
                                   comm.rank()),
                       [&] { arena.ready("bias"); });
    expect_refused(fmt::format("\"weight\" was never declared ready in this step on rank {}; call "
                               "ready(\"weight\") and wait() again",
                               comm.rank()),
                   [&] { arena.wait(); });
    arena.ready("weight");
    arena.wait();
    // The arena's destruction ends this incomplete step.
    arena.ready("bias");
  });
}

TEST(Arena, SteadyStepsAllocateNothingAndSendNoControlMessage) {
  test::run_threads(2, [](Communicator& comm) {
    GradientArena arena(comm, {{"a", {100'000}}, {"b", {50}}, {"c", {300'000}}});
    const auto step = [&] {
      for (const char* name : {"c", "b", "a"}) arena.ready(name);
      arena.wait();
    };
    const auto fresh = comm.statistics();
    for (int i = 0; i < 12; ++i) step();
    const auto before = comm.statistics();
    // The counters that must not change below did grow while the plan was agreed on.
    EXPECT_GT(before.allocations, fresh.allocations);
    EXPECT_GT(before.negotiation_messages, fresh.negotiation_messages);
    EXPECT_GE(before.plans_locked, fresh.plans_locked + 1);
    for (int i = 0; i < 50; ++i) step();
    const auto after = comm.statistics();
    EXPECT_GE(after.buckets - before.buckets, 50u);
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.negotiation_messages, before.negotiation_messages);
    EXPECT_EQ(after.replayed_buckets - before.replayed_buckets, after.buckets - before.buckets);
  });
}

// Rank 0's arena is destroyed in the middle of a step. The destructor waits until rank 1, which
// comes late, has received its part, and rank 1 receives all of it.
TEST(Arena, DestroyedInAStepItWaitsForTheRest) {
  std::atomic<bool> has_begun{false};
  test::run_threads(2, [&](Communicator& comm) {
    constexpr int64_t kElements = 300'000;
    auto arena = std::make_unique<GradientArena>(
        comm, std::vector<GradientArena::Array>{{"w", {kElements}}, {"v", {kElements}}});
    for (const char* name : {"w", "v"})
      std::fill_n((*arena)[name].as<float>(), kElements, static_cast<float>(comm.rank() + 1));
    if (comm.rank() == 1) {
      EXPECT_TRUE(test::wait_until([&] { return has_begun.load(); }));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      for (const char* name : {"w", "v"}) arena->ready(name);
      arena->wait();
      for (const char* name : {"w", "v"})
        EXPECT_EQ((*arena)[name].as<float>()[kElements - 1], 1.5f) << name;
      arena.reset();
    } else {
      for (const char* name : {"w", "v"}) arena->ready(name);
      const auto begin = Clock::now();
      has_begun = true;
      arena.reset();
      EXPECT_GT(std::chrono::duration<double>(Clock::now() - begin).count(), 0.03);
    }
    comm.barrier_blocking();
  });
}

}  // namespace
}  // namespace tutti
