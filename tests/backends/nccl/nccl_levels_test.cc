// Two levels for device memory: nccl within a host, another backend between hosts. Uses the fake
// device, the fake NCCL and hosts that differ only in name.

#include "tests/backends/nccl/nccl_levels.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "tests/backends/conformance/backend_conformance.h"
#include "tests/backends/conformance/on_device.h"
#include "tests/backends/fake_nccl/judge.h"
#include "tests/backends/nccl/nccl_ranks.h"
#include "tutti/backends/plugins.h"
#include "tutti/kernels/reduce.h"

namespace tutti::test {
namespace {

const bool judged = FakeNcclJudge::install();

Backends level_backends(const std::string& name, const Layout& layout,
                        int64_t segment_bytes = kTestSegmentBytes) {
  const auto plugins = load_backends(name, {}, {});
  return make_backends(find_backend("hierarchical"), static_cast<int>(layout.size()),
                       [&](Context& context) {
                         context.name = name;
                         context.plugins = plugins;
                         context.settings["TUTTI_BACKEND_LIBRARY"] = TUTTI_FAKE_NCCL;
                         context.executor.segment_bytes = segment_bytes;
                         for (size_t i = 0; i < layout.size(); ++i)
                           context.places[i].host = fmt::format("host {}", layout[i]);
                       });
}

// Puts two ranks on each host if the size is even, otherwise one.
Layout pairs(int size) {
  Layout layout;
  for (int rank = 0; rank < size; ++rank) layout.push_back(size % 2 ? rank : rank / 2);
  return layout;
}

INSTANTIATE_TEST_SUITE_P(NcclTcp, BackendConformance,
                         testing::Values(BackendMaker{"DeviceMemory",
                                                      [](int size) {
                                                        auto ends =
                                                            level_backends("nccl+tcp", pairs(size));
                                                        for (auto& end : ends)
                                                          end = on_device(std::move(end));
                                                        return ends;
                                                      }}),
                         [](const auto& info) { return info.param.name; });

TEST(NcclLevels, AllreduceOfEveryOpOnEveryLayout) {
  for (const auto& layout : {kTwoByTwo, kMixed, kThreeByOne, kTwoByThree}) {
    run_levels(layout, [](Communicator& comm) {
      EXPECT_EQ(comm.backend(), "nccl+tcp");
      for (const auto dtype : {DataType::f64, DataType::i32}) every_op(comm, dtype);
      comm.barrier("end").wait();
    });
    if (HasFailure()) return;
  }
  EXPECT_GT(FakeNccl::completed(), 100);
}

class NcclLevelsOver : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Between, NcclLevelsOver, testing::Values("ucx", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(NcclLevelsOver, AllreduceOfEveryOp) {
  const auto name = fmt::format("nccl+{}", GetParam());
  try {
    load_backends(name, {}, {});
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  run_levels(
      kTwoByTwo,
      [&](Communicator& comm) {
        EXPECT_EQ(comm.backend(), name);
        every_op(comm, DataType::f32);
        comm.barrier("end").wait();
      },
      [&](Options& options) { options.backend = name; });
}

// Runs one collective of f32 ones on all ranks and checks the first element of every output.
// Returns the bytes that each host sent to other hosts.
std::vector<int64_t> bytes_that_leave(const Layout& layout, CollectiveKind kind,
                                      const std::vector<int64_t>& counts, float expected) {
  auto ends = level_backends("nccl+tcp", layout, 1 << 20);
  std::vector<std::vector<uint64_t>> before;
  for (auto& end : ends) before.push_back(end->counters().bytes_to_peer);
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::vector<Tensor> inputs, outputs;
  std::vector<OperationPtr> running;
  DeviceLaunch device;
  device.agreed = true;
  Launch launch;
  launch.tag = 1;
  launch.device = &device;
  for (auto& end : ends) {
    auto& input = inputs.emplace_back(Shape{all}, DataType::f32, kFake);
    auto& output = outputs.emplace_back(Shape{all}, DataType::f32, kFake);
    std::fill_n(input.as<float>(), all, 1.0f);
    running.push_back(end->start(
        {kind, DataType::f32, ReduceOp::sum, 0, input.data(), output.data(), counts, {}, {}},
        launch));
  }
  const auto deadline = Deadline::after(30);
  size_t done = 0;
  while (done < ends.size() && !deadline.passed()) {
    for (auto& end : ends) end->progress();
    done = static_cast<size_t>(std::count_if(running.begin(), running.end(), [](auto& one) {
      return one->advance() == OperationState::done;
    }));
  }
  EXPECT_EQ(done, ends.size());
  running.clear();
  for (const auto& output : outputs) EXPECT_EQ(output.as<float>()[0], expected);
  std::vector<int64_t> sent(ends.size());
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    const auto after = ends[rank]->counters().bytes_to_peer;
    for (size_t peer = 0; peer < ends.size(); ++peer)
      if (layout[peer] != layout[rank])
        sent[static_cast<size_t>(layout[rank])] +=
            static_cast<int64_t>(after[peer] - (before[rank].empty() ? 0 : before[rank][peer]));
  }
  sent.resize(static_cast<size_t>(*std::max_element(layout.begin(), layout.end())) + 1);
  return sent;
}

// For h hosts, 2 (h - 1) / h of an allreduce's data leaves each host, however many ranks it has.
// For all other kinds, each host sends only the data that other hosts lack.
TEST(NcclLevels, CrossHostBytesAreTheLeastThereCanBe) {
  constexpr int64_t kCount = 600'000;
  const auto expect_near = [](const std::vector<int64_t>& sent, int64_t least) {
    for (const auto bytes : sent) {
      EXPECT_GE(bytes, least - 64 * static_cast<int64_t>(sent.size()));
      EXPECT_LE(bytes, least + least / 100);
    }
  };
  for (const auto& layout : {kTwoByTwo, kMixed}) {
    const auto ranks = static_cast<float>(layout.size());
    const auto sent = bytes_that_leave(layout, CollectiveKind::allreduce, {kCount}, ranks);
    const auto hosts = static_cast<int64_t>(sent.size());
    expect_near(sent, 2 * kCount * 4 * (hosts - 1) / hosts);
  }
  for (const auto& layout : {kTwoByTwo, kTwoByThree}) {
    const auto size = layout.size();
    const auto broadcast = bytes_that_leave(layout, CollectiveKind::broadcast, {kCount}, 1);
    expect_near({broadcast.front()}, kCount * 4);
    EXPECT_LE(broadcast.back(), 4096);
    const std::vector<int64_t> counts(size, kCount / static_cast<int64_t>(size));
    expect_near(bytes_that_leave(layout, CollectiveKind::allgather, counts, 1), kCount * 4 / 2);
    expect_near(
        bytes_that_leave(layout, CollectiveKind::reduce_scatter, counts, static_cast<float>(size)),
        kCount * 4 / 2);
  }
}

// Uses every root and unequal parts.
TEST(NcclLevels, BroadcastAllgatherAndReduceScatterOnEveryLayout) {
  for (const auto& layout : {kTwoByTwo, kMixed, kThreeByOne, kTwoByThree}) {
    run_levels(layout, [](Communicator& comm) {
      UserStream stream;
      const int rank = comm.rank(), size = comm.size();
      for (int root = 0; root < size; ++root)
        for (const int64_t count : {1, 7, 1000}) {
          const auto value = stream.make(Shape{count}, DataType::f32,
                                         [&](int64_t i) { return value_of(rank, i); });
          comm.broadcast(fmt::format("b{}.{}", root, count), stream.view(value), root)
              .wait_on(stream.get());
          stream.expect(value, [&](int64_t i) { return value_of(root, i); });
        }
      const auto part =
          stream.make(Shape{3 * rank}, DataType::i64, [&](int64_t i) { return 100 * rank + i; });
      auto gathered = comm.allgather("parts", stream.view(part));
      gathered.wait_on(stream.get());
      std::vector<double> all;
      for (int other = 0; other < size; ++other)
        for (int i = 0; i < 3 * other; ++i) all.push_back(100 * other + i);
      stream.expect(gathered.output(), [&](int64_t i) { return all[static_cast<size_t>(i)]; });
      for (const int64_t count : {int64_t{1}, int64_t{size}, int64_t{5 * size + 2}}) {
        const auto whole =
            stream.make(Shape{count}, DataType::f32, [&](int64_t i) { return value_of(rank, i); });
        auto reduced_part = comm.reduce_scatter(fmt::format("r{}", count), stream.view(whole),
                                                {.op = ReduceOp::average});
        reduced_part.wait_on(stream.get());
        const int64_t begin = rank * (count / size) + std::min<int64_t>(rank, count % size);
        stream.expect(reduced_part.output(),
                      [&](int64_t i) { return reduced(size, ReduceOp::average, begin + i); });
      }
      comm.barrier("end").wait();
    });
    if (HasFailure()) return;
  }
}

// A training loop as in the tests of nccl alone: buckets of several types that are scaled and cast.
TEST(NcclLevels, StepsAreReplayedInStreamOrder) {
  run_levels(
      kTwoByTwo, [](Communicator& comm) { train(comm, false); },
      [](Options& options) { options.fusion_bytes = 2000; });
}

// The user's stream waits for each result before it makes the next tensor, while the host runs
// ahead.
TEST(NcclLevels, WhatWaitsForAUsersStreamHoldsUpNothingBeforeIt) {
  run_levels(kTwoByTwo, [](Communicator& comm) { train(comm, true); });
}

TEST(NcclLevels, VetoedBucketsAreDroppedWholeAndRunAgain) {
  run_levels(kTwoByTwo, leave_the_plan, [](Options& options) { options.fusion_bytes = 200; });
}

TEST(NcclLevels, WhatBothLevelsDoNotServeGoesThroughHostMemory) {
  std::mutex mutex;
  std::vector<std::string> lines;
  const auto listen = [&](Options& options) {
    options.log_level = LogLevel::info;
    options.log = [&](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex);
      lines.emplace_back(line);
    };
  };
  const auto count = [&](const std::string& text) {
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.find(text) != line.npos; });
  };
  run_levels(
      kTwoByTwo,
      [](Communicator& comm) {
        UserStream stream;
        const int rank = comm.rank();
        const auto value = stream.make(Shape{9}, DataType::f32, [&](int64_t) { return rank; });
        for (int i = 0; i < 2; ++i) {
          auto work = comm.gather(fmt::format("g{}", i), stream.view(value), 2);
          work.wait();
          EXPECT_EQ(work.output().count(), rank == 2 ? 36 : 0);
        }
        comm.barrier("end").wait();
      },
      listen);
  EXPECT_EQ(count("does not run gather of f32 on fake:0: it goes through host memory"), 1);
  lines.clear();
  // The hosts have unequal numbers of ranks.
  run_levels(
      {0, 0, 1}, [](Communicator& comm) { every_op(comm, DataType::f32); }, listen);
  EXPECT_EQ(count("backend nccl+tcp: the hosts have unequal numbers of ranks"), 1);
}

TEST(NcclLevels, AnOperationKnowsThatARankHasNotStartedIt) {
  auto ends = level_backends("nccl+tcp", kTwoByTwo);
  const int64_t count = 100;
  const DeviceLaunch device;
  Launch launch;
  launch.tag = 1;
  launch.device = &device;
  std::vector<Tensor> tensors;
  std::vector<OperationPtr> operations;
  const auto start = [&] {
    const auto& tensor = tensors.emplace_back(Shape{count}, DataType::f32, kFake);
    std::fill_n(tensor.as<float>(), count, 1.0f);
    operations.push_back(ends[operations.size()]->start({CollectiveKind::allreduce,
                                                         DataType::f32,
                                                         ReduceOp::sum,
                                                         0,
                                                         tensor.data(),
                                                         tensor.data(),
                                                         {&count, 1},
                                                         {},
                                                         {}},
                                                        launch));
  };
  const auto progress = [&] {
    bool over = true;
    for (auto& end : ends) end->progress();
    for (auto& operation : operations) over &= operation->advance() == OperationState::done;
    return over;
  };
  start();
  const auto a_while = Deadline::after(0.05);
  while (!a_while.passed()) EXPECT_FALSE(progress());
  EXPECT_TRUE(operations[0]->lacks_ranks());
  while (operations.size() < ends.size()) start();
  const auto deadline = Deadline::after(20);
  while (!progress() && !deadline.passed()) {
  }
  for (const auto& operation : operations) EXPECT_FALSE(operation->lacks_ranks());
  for (const auto& tensor : tensors) EXPECT_THAT(tensor.span<float>(), testing::Each(4.0f));
}

TEST(NcclLevels, OneHostIsTheInnerLevelAlone) {
  run_levels({0, 0, 0}, [](Communicator& comm) {
    EXPECT_EQ(comm.backend(), "nccl");
    every_op(comm, DataType::f32);
  });
}

TEST(NcclLevels, PartsAreSplitOffWithinTheHosts) {
  run_levels(kTwoByThree, [](Communicator& comm) {
    const auto part = comm.split(comm.rank() % 3 == 1 ? 0 : 1, 0);
    EXPECT_EQ(part->size(), comm.rank() % 3 == 1 ? 2 : 4);
    every_op(*part, DataType::f32);
    comm.barrier("end").wait();
  });
  EXPECT_EQ(FakeNccl::unique_ids(), 2);  // one per host
}

}  // namespace
}  // namespace tutti::test
