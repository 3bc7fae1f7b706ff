// Join, barrier, splits, and the properties of a communicator.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/api/case.h"

namespace tutti::test {
namespace {

TUTTI_CASE(Basics, RanksAreNumberedAndCounted) {
  EXPECT_EQ(comm.rank(), comm.options().rank);
  EXPECT_EQ(comm.size(), comm.options().size);
  ASSERT_GE(comm.rank(), 0);
  ASSERT_LT(comm.rank(), comm.size());
  ASSERT_GE(comm.local_rank(), 0);
  ASSERT_LT(comm.local_rank(), comm.local_size());
  // The number of ranks with local rank 0 is the number of hosts.
  std::vector<int> firsts(1, comm.local_rank() == 0 ? 1 : 0);
  comm.allreduce("firsts", firsts, ReduceOp::sum).wait();
  EXPECT_EQ(firsts[0], comm.hosts());
  std::vector<int> here(static_cast<size_t>(comm.size()), 0);
  here[static_cast<size_t>(comm.rank())] = 1;
  comm.allreduce("here", here, ReduceOp::sum).wait();
  EXPECT_EQ(here, std::vector<int>(here.size(), 1));
}

TUTTI_CASE(Basics, CommunicatorsComeAndGo) {
  for (int i = 0; i < 3; ++i) {
    const auto again = comm.split(0);
    ASSERT_EQ(again->size(), comm.size());
    ASSERT_EQ(again->rank(), comm.rank());
    expect_still_works(*again);
  }
  expect_still_works(comm);
}

// --- join ---------------------------------------------------------------------------------------

// Rank r has r + 1 steps. The mean is over the ranks that still have a step.
TUTTI_CASE(Join, AllreduceDividesByThoseThatAreLeft) {
  const int size = comm.size();
  for (int step = 0; step <= comm.rank(); ++step) {
    std::vector<float> values(17, static_cast<float>(2 * comm.rank()));
    comm.allreduce("uneven", values).wait();
    // The mean of 2 step, 2 (step + 1) ... 2 (size - 1).
    EXPECT_EQ(values, std::vector<float>(17, static_cast<float>(step + size - 1)));
  }
  const auto last = comm.join().output();
  EXPECT_EQ(last.shape(), Shape{});
  EXPECT_EQ(*last.as<int64_t>(), size - 1);
  expect_still_works(comm);
}

// All ranks but the last, which has joined, run `body` and must get an error.
void expect_error_with_joined(Communicator& comm, const std::string& what,
                              const std::function<void()>& body) {
  const int joined = comm.size() - 1;
  if (comm.rank() != joined) {
    const auto error = error_of(body);
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_EQ(error.what(),
              fmt::format("\"x\": {} cannot run while rank {} has joined (is out of data); only "
                          "allreduce can. Nothing was changed.",
                          what, joined));
  }
  comm.join().wait();
  expect_still_works(comm);
}

TUTTI_CASE(Join, AllgatherIsAnError) {
  std::vector<float> values(3, 1);
  expect_error_with_joined(comm, "allgather", [&] { comm.allgather("x", values).wait(); });
}

TUTTI_CASE(Join, BroadcastIsAnError) {
  std::vector<float> values(3, 1);
  expect_error_with_joined(comm, "broadcast", [&] { comm.broadcast("x", values).wait(); });
}

TUTTI_CASE(Join, SoIsEveryOtherCollectiveThatAllRanksMake) {
  std::vector<float> values(static_cast<size_t>(comm.size()), 1), result = values;
  expect_error_with_joined(comm, "alltoall", [&] { comm.alltoall("x", values).wait(); });
  expect_error_with_joined(comm, "reduce_scatter",
                           [&] { comm.reduce_scatter("x", values).wait(); });
  expect_error_with_joined(comm, "reduce", [&] { comm.reduce("x", values, result).wait(); });
  expect_error_with_joined(comm, "gather", [&] { comm.gather("x", values).wait(); });
  expect_error_with_joined(comm, "scatter", [&] { comm.scatter("x", values).wait(); });
  EXPECT_EQ(values, std::vector<float>(values.size(), 1));
}

// --- barrier ------------------------------------------------------------------------------------

// No rank may leave the barrier before the late rank has come. All ranks of this machine share the
// clock.
void check_barrier(Communicator& comm) {
  if (comm.size() == 1) return comm.barrier().wait();
  const auto now = [] { return int64_t{Clock::now().time_since_epoch().count()}; };
  for (int late = 0; late < comm.size(); ++late) {
    if (comm.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::vector<int64_t> came{now()};
    comm.barrier().wait();
    const int64_t left = now();
    comm.broadcast_blocking("came", came, late);
    EXPECT_GE(left, came[0]) << "rank " << comm.rank();
  }
}

TUTTI_CASE(Barrier, Global) { check_barrier(comm); }
TUTTI_CASE(Barrier, ProcessSets) { in_process_set(comm, check_barrier); }

TUTTI_CASE(Barrier, MixedWithCollectives) {
  for (int i = 0; i < 20; ++i) {
    const auto mine = static_cast<float>(comm.rank());
    std::vector<float> sum(100, 1), word(10, mine), part(10, mine);
    auto a = comm.allreduce("sum", sum, ReduceOp::sum);
    auto b = comm.barrier("between");
    auto c = comm.broadcast("word", word, 1);
    auto d = comm.allgather("gather", part);
    c.wait();
    b.wait();
    comm.barrier_blocking();
    a.wait();
    EXPECT_EQ(sum[99], static_cast<float>(comm.size()));
    EXPECT_EQ(word[9], 1);
    EXPECT_EQ(d.output().count(), 10 * comm.size());
  }
}

// --- splits -------------------------------------------------------------------------------------

// Two sets and the whole communicator work at the same time, each at its own pace.
TUTTI_CASE(ProcessSets, ProgressIndependently) {
  const auto set = comm.split(comm.rank() % 2, -comm.rank());
  std::vector<float> whole(1000, 1), part(1000, 1);
  auto work = comm.allreduce("whole", whole, ReduceOp::sum);
  for (int i = 0; i < 10 * (comm.rank() % 2 + 1); ++i) {
    std::fill(part.begin(), part.end(), 1.0f);
    set->allreduce("part", part, ReduceOp::sum).wait();
    ASSERT_EQ(part[999], static_cast<float>(set->size()));
  }
  work.wait();
  EXPECT_EQ(whole[0], static_cast<float>(comm.size()));
  // The ranks of the set are ordered by key: the highest rank comes first.
  EXPECT_EQ(set->rank(), (comm.size() - 1 - comm.rank()) / 2);
  EXPECT_EQ(comm.split(comm.rank() == 0 ? -1 : 3) == nullptr, comm.rank() == 0);
}

// --- timeline -----------------------------------------------------------------------------------

TUTTI_CASE(Timeline, StartsAndStopsAtRunTime) {
  // Rank 0 chooses one file name for all ranks.
  const auto own = (std::filesystem::temp_directory_path() /
                    fmt::format("tutti_timeline_{}_{}.json", ::getpid(), ::gettid()))
                       .string();
  const auto bytes = comm.broadcast_bytes("file", std::as_bytes(std::span(own.data(), own.size())));
  const std::string file(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  comm.start_timeline(file);
  comm.barrier_blocking();
  std::vector<float> values(1000, 1);
  comm.allreduce("traced", values).wait();
  const auto now = Clock::now();
  comm.timeline_span("mine", now - std::chrono::milliseconds(1), now);
  comm.barrier_blocking();
  comm.stop_timeline();
  if (comm.rank() == 0) {
    std::ifstream stream(file);
    const auto trace = nlohmann::json::parse(stream);
    const auto& events = trace.is_array() ? trace : trace.at("traceEvents");
    std::vector<int> traced(static_cast<size_t>(comm.size())), mine = traced;
    for (const auto& event : events) {
      const auto rank = event.value("pid", -1);
      if (rank < 0 || rank >= comm.size()) continue;
      const auto name = event.value("name", "");
      traced[static_cast<size_t>(rank)] |= event.dump().find("traced") != std::string::npos;
      mine[static_cast<size_t>(rank)] |= name == "mine";
    }
    EXPECT_EQ(traced, std::vector<int>(traced.size(), 1));
    EXPECT_EQ(mine, std::vector<int>(mine.size(), 1));
    std::filesystem::remove(file);
  }
  comm.barrier_blocking();
}

}  // namespace
}  // namespace tutti::test
