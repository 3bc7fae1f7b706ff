// Every collective of the benchmark, with ranks as threads.
#include "tools/bench/cases/exercise.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tools/bench/cases/cases.h"
#include "tools/bench/cases/gradient_step.h"
#include "tutti/kernels/reduce.h"

namespace tutti::bench {
namespace {

using test::run_threads;

bool reduces(const Case& entry) { return (entry.options & kOp) != 0; }

// Runs a collective in all ways, in place and out of place, for one dtype and op, with odd sizes.
void check_all(Communicator& comm, const Case& entry, DataType dtype, ReduceOp op) {
  for (const auto way : entry.ways) {
    for (const bool in_place : {false, true}) {
      if (!exists(entry.name, way, in_place)) continue;
      if (way == Way::vector && dtype != DataType::f32) continue;  // tutti-bench refuses others
      // Replayed calls need a new communicator each time.
      if (way == Way::replayed && dtype != DataType::f32) continue;
      for (const int64_t bytes : {1, 1000, 70'000}) {
        const auto volume = volume_of(entry.name, bytes, dtype, comm.size());
        // After each plan that a communicator gave up, the next plan needs twice as many steps.
        const auto fresh = way == Way::replayed ? comm.split(0) : nullptr;
        auto& ranks = fresh ? *fresh : comm;
        Exercise exercise(ranks, {entry.name, way, in_place, dtype, op, comm.size() - 1, volume});
        exercise.run(1);
        ranks.barrier_blocking();  // no rank leaves before the others have their results
        EXPECT_EQ(exercise.count_wrong(), 0)
            << entry.name << " " << to_string(way) << (in_place ? " in place " : " ") << bytes
            << " B " << to_string(dtype) << " " << to_string(op);
      }
    }
  }
}

class ExerciseOf : public testing::TestWithParam<std::string> {};

TEST_P(ExerciseOf, EveryWayAndDtypeIsRight) {
  const auto& entry = find_case(GetParam());
  run_threads(3, [&](Communicator& comm) {
    if (!reduces(entry)) {
      for (const auto dtype : {DataType::u8, DataType::f32, DataType::f64})
        check_all(comm, entry, dtype, ReduceOp::sum);
      return;
    }
    for (int dtype = 0; dtype < kDataTypeCount; ++dtype)
      if (can_reduce(static_cast<DataType>(dtype), ReduceOp::max))
        check_all(comm, entry, static_cast<DataType>(dtype), ReduceOp::max);
    for (const auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::product})
      for (const auto dtype : {DataType::f32, DataType::bf16, DataType::i8})
        check_all(comm, entry, dtype, op);
    check_all(comm, entry, DataType::u32, ReduceOp::band);
    check_all(comm, entry, DataType::u32, ReduceOp::bor);
    check_all(comm, entry, DataType::u32, ReduceOp::bxor);
  });
}

INSTANTIATE_TEST_SUITE_P(Collectives, ExerciseOf,
                         testing::Values("allreduce", "allgather", "broadcast", "reduce", "gather",
                                         "scatter", "reduce_scatter", "alltoall", "sendrecv",
                                         "barrier"),
                         [](const auto& info) { return info.param; });

// A collective that does nothing, or runs twice, must be counted as wrong.
TEST(Exercise, WhatDidNotRunOnceIsCountedAsWrong) {
  run_threads(2, [](Communicator& comm) {
    for (const auto* name : {"allreduce", "allgather", "alltoall", "gather", "sendrecv"}) {
      const auto way = Way::named;
      const bool in_place = exists(name, way, true);
      const auto volume = volume_of(name, 4000, DataType::f32, comm.size());
      Exercise exercise(comm,
                        {name, way, in_place, DataType::f32, ReduceOp::sum, comm.rank(), volume});
      EXPECT_GE(exercise.count_wrong(), volume.total / 2) << name;
    }
    Exercise twice(comm, {"allreduce", Way::named, true, DataType::f32, ReduceOp::sum, 0,
                          volume_of("allreduce", 4000, DataType::f32, comm.size())});
    twice.run(2);
    EXPECT_EQ(twice.count_wrong(), 1000);
  });
}

TEST(Exercise, VolumesAreThoseOfNcclTests) {
  const auto volume = [](const char* name, int64_t bytes) {
    const auto [total, count] = volume_of(name, bytes, DataType::f32, 4);
    return std::pair(total, count);
  };
  EXPECT_EQ(volume("allreduce", 4096), std::pair(int64_t{1024}, int64_t{1024}));
  EXPECT_EQ(volume("allgather", 4096), std::pair(int64_t{1024}, int64_t{256}));
  EXPECT_EQ(volume("alltoall", 4), std::pair(int64_t{4}, int64_t{1}));
  EXPECT_EQ(volume("allreduce", 1), std::pair(int64_t{1}, int64_t{1}));
  EXPECT_EQ(volume("barrier", 4096), std::pair(int64_t{0}, int64_t{0}));
}

TEST(GradientStep, EveryWayAveragesAnyNumberOfTimes) {
  run_threads(3, [](Communicator& comm) {
    const std::vector<Gradient> gradients = {{"a", 1000}, {"b", 1}, {"c", 20'000}};
    for (const auto way : {Way::named, Way::declared, Way::grouped, Way::arena}) {
      GradientStep step(comm, gradients, way);
      EXPECT_EQ(step.bytes(), 4 * 21'001);
      EXPECT_GT(step.count_wrong(), 1000) << "before a step";
      step.run(7);
      EXPECT_EQ(step.count_wrong(), 0) << to_string(way);
    }
  });
}

}  // namespace
}  // namespace tutti::bench
