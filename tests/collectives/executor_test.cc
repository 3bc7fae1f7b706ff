#include "tutti/collectives/executor.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "tests/collectives/every_algorithm.h"
#include "tests/collectives/executor_fixture.h"
#include "tests/support/expect_error.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using test::Counts;
using test::Job;
using test::sample;
using test::sum_of_samples;

constexpr uint64_t kSeed = 20261121;

int64_t sum_before(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

// Returns element i of the result of `rank`, computed plainly.
double expected(const Job::Setting& setting, int size, int rank, int64_t i) {
  const auto average = setting.op == ReduceOp::average ? size : 1;
  const auto scaled = [&](double value) {
    value = value / (average * static_cast<double>(setting.scale.divisor));
    if (!is_float(setting.dtype)) value = std::trunc(value);
    return value * setting.scale.factor;
  };
  switch (setting.kind) {
    case CollectiveKind::allreduce:
    case CollectiveKind::reduce:
      return scaled(sum_of_samples(size, i));
    case CollectiveKind::reduce_scatter:
      return scaled(sum_of_samples(size, sum_before(setting.counts, rank) + i));
    case CollectiveKind::broadcast:
      return sample(setting.root, i);
    case CollectiveKind::scatter:
      return sample(setting.root, sum_before(setting.counts, rank) + i);
    case CollectiveKind::allgather:
    case CollectiveKind::gather: {
      int from = 0;
      for (; i >= setting.counts[static_cast<size_t>(from)]; ++from)
        i -= setting.counts[static_cast<size_t>(from)];
      return sample(from, i);
    }
    case CollectiveKind::alltoall: {
      size_t from = 0;
      for (; i >= setting.matrix[from][static_cast<size_t>(rank)]; ++from)
        i -= setting.matrix[from][static_cast<size_t>(rank)];
      return sample(static_cast<int>(from), sum_before(setting.matrix[from], rank) + i);
    }
    default:
      return 0;
  }
}

int64_t results(const Job& job, const Job::Setting& setting, int rank) {
  const auto& member = job.members[static_cast<size_t>(rank)];
  return output_count({setting.kind,
                       rank,
                       job.network.size(),
                       setting.root,
                       member.send_counts,
                       member.recv_counts,
                       {},
                       false});
}

Counts some_counts(int size, std::mt19937_64& random) {
  Counts counts;
  for (int i = 0; i < size; ++i)
    counts.push_back(random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % 40));
  return counts;
}

class EveryKind : public testing::TestWithParam<Algorithm> {
 protected:
  Job::Setting setting(int size, std::mt19937_64& random) {
    Job::Setting setting;
    setting.kind = GetParam().kind;
    using enum CollectiveKind;
    if (setting.kind == allreduce || setting.kind == broadcast || setting.kind == reduce)
      setting.counts = {static_cast<int64_t>(random() % 150)};
    else if (setting.kind == alltoall)
      for (int i = 0; i < size; ++i) setting.matrix.push_back(some_counts(size, random));
    else if (setting.kind != barrier)
      setting.counts = some_counts(size, random);
    setting.root = static_cast<int>(random() % static_cast<uint64_t>(size));
    return setting;
  }
};

TEST_P(EveryKind, GivesTheModelWhateverTheOrderOfDelivery) {
  const auto& algorithm = GetParam();
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 60; ++round) {
    const int size = 1 + round % 7;
    auto wanted = setting(size, random);
    constexpr DataType kTypes[] = {DataType::f32, DataType::bf16, DataType::i32};
    wanted.dtype = kTypes[round % 3];
    const bool is_even_kind = wanted.counts.size() == 1 && wanted.kind != CollectiveKind::reduce;
    wanted.through_bucket = is_even_kind && round % 2 == 1;
    wanted.packs = wanted.kind == CollectiveKind::allreduce && round % 4 == 1;
    if (random() % 3 > 0)
      wanted.direct = {static_cast<int64_t>(random() % 50), static_cast<int64_t>(random() % 200)};
    wanted.in_place = !wanted.through_bucket && wanted.counts.size() == 1 && round % 4 == 2;
    if (round % 5 == 1) wanted.op = ReduceOp::average;
    if (round % 5 == 2) wanted.scale = {0.5, 1};
    if (round % 5 == 3) wanted.scale = {1, 2};
    std::vector<int> hosts;
    for (int rank = 0; rank < size; ++rank) hosts.push_back(rank * 2 / 3 % 3);
    const ExecutorOptions options{1 + static_cast<int64_t>(random() % 200),
                                  1 + static_cast<int>(random() % 5)};
    SCOPED_TRACE(fmt::format("round {} of seed {}: {} ranks, {}", round, kSeed, size,
                             to_string(wanted.dtype)));
    Job job(size, kSeed + static_cast<uint64_t>(round));
    job.prepare(wanted);
    job.run(algorithm, options, hosts);
    for (int rank = 0; rank < size; ++rank) {
      const auto place = static_cast<size_t>(rank);
      ASSERT_EQ(job.states[place], OperationState::done);
      for (int64_t i = 0; i < results(job, wanted, rank); ++i) {
        const double value = expected(wanted, size, rank, i);
        // Integers this small are exact in every type, but averages are not.
        const double tolerance = is_float(wanted.dtype) ? std::fabs(value) / 128 : 0;
        ASSERT_NEAR(job.members[place].result(i),
                    wanted.dtype == DataType::i32 ? std::trunc(value) : value, tolerance)
            << "rank " << rank << " element " << i;
        if (wanted.kind == CollectiveKind::allreduce) {
          ASSERT_EQ(job.members[place].result(i), job.members[0].result(i)) << "rank " << rank;
        }
      }
    }
  }
}

TEST_P(EveryKind, AVetoAtAnyRankReachesAllAndWritesNothing) {
  const auto& algorithm = GetParam();
  if (!reduces(algorithm.kind) && algorithm.kind != CollectiveKind::barrier) return;
  std::mt19937_64 random(kSeed);
  for (const int size : {1, 2, 3, 5}) {
    for (int vetoing = 0; vetoing < size; ++vetoing) {
      for (int round = 0; round < 8; ++round) {
        auto wanted = setting(size, random);
        wanted.through_bucket = wanted.kind == CollectiveKind::allreduce && round % 2 == 0;
        wanted.in_place = wanted.kind == CollectiveKind::allreduce && round % 4 == 1;
        wanted.packs = wanted.through_bucket && round % 4 == 0;
        wanted.direct = {0, static_cast<int64_t>(random() % 200)};
        const ExecutorOptions options{1 + static_cast<int64_t>(random() % 100),
                                      1 + static_cast<int>(random() % 4)};
        Job job(size, random());
        job.prepare(wanted);
        auto& member = job.members[static_cast<size_t>(vetoing)];
        member.launch.verdict = 4;
        if (round % 3 == 0 && !wanted.through_bucket && !wanted.in_place)
          member.collective.input = nullptr;  // never read
        std::vector<std::vector<std::byte>> inputs;
        for (const auto& each : job.members) inputs.push_back(each.input);
        job.run(algorithm, options);
        for (size_t rank = 0; rank < job.members.size(); ++rank) {
          ASSERT_EQ(job.states[rank], OperationState::vetoed) << size << " " << vetoing;
          ASSERT_EQ(job.members[rank].output, job.members[rank].output_before);
          ASSERT_EQ(job.members[rank].input, inputs[rank]);
        }
      }
    }
  }
}

TEST_P(EveryKind, CancelledLetsGoOfAllMemory) {
  const auto& algorithm = GetParam();
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 40; ++round) {
    const int size = 2 + round % 4;
    auto wanted = setting(size, random);
    Job job(size, random());
    job.prepare(wanted);
    job.start(algorithm, {64, 3});
    for (uint64_t i = random() % 40; i > 0; --i) {
      job.network.step();
      const auto rank = random() % job.operations.size();
      if (job.states[rank] == OperationState::pending)
        job.states[rank] = job.operations[rank]->advance();
    }
    for (auto& operation : job.operations) operation->cancel();
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(job.network.transport(rank).tickets(), 0u);
      EXPECT_NE(job.states[static_cast<size_t>(rank)], OperationState::vetoed);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Executor, EveryKind, testing::ValuesIn(test::collectives_of_all()),
                         test::name_of);

TEST(Executor, ManyOperationsAtOnceKeepApart) {
  constexpr int kSize = 4, kOperations = 8;
  Job network(kSize, kSeed);
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<std::vector<OperationPtr>> operations(kOperations);
  for (int j = 0; j < kOperations; ++j) {
    auto& job = *jobs.emplace_back(std::make_unique<Job>(kSize, 0));
    Job::Setting setting;
    setting.counts = {10 + j};
    setting.tag = static_cast<uint64_t>(j) + 1;
    setting.scale = {static_cast<double>(j + 1), 1};
    job.prepare(setting);
  }
  const auto& ring = find_algorithm(CollectiveKind::allreduce, "ring");
  for (int rank = 0; rank < kSize; ++rank) {
    auto& executor = network.add_executor(rank, {16, 2});
    for (int k = 0; k < kOperations; ++k) {  // each rank starts them in its own order
      const auto j = static_cast<size_t>((k * (2 * rank + 1)) % kOperations);
      const auto& member = jobs[j]->members[static_cast<size_t>(rank)];
      operations[j].push_back(executor.start(ring, member.collective, member.launch));
    }
  }
  for (auto& of_job : operations)
    for (auto& operation : of_job) {
      network.operations.push_back(std::move(operation));
      network.states.push_back(OperationState::pending);
    }
  ASSERT_TRUE(network.finish());
  for (int j = 0; j < kOperations; ++j)
    for (int rank = 0; rank < kSize; ++rank)
      for (int64_t i = 0; i < 10 + j; ++i)
        ASSERT_EQ(jobs[static_cast<size_t>(j)]->members[static_cast<size_t>(rank)].result(i),
                  sum_of_samples(kSize, i) * (j + 1));
}

TEST(Executor, KeepsSegmentsInFlight) {
  for (const int in_flight : {1, 4}) {
    Job job(2, kSeed);
    Job::Setting setting;
    setting.counts = {100};
    job.prepare(setting);
    job.start(find_algorithm(CollectiveKind::allreduce, "one_shot"), {4 * 10, in_flight});
    EXPECT_EQ(job.network.transport(0).tickets(), static_cast<size_t>(2 * in_flight));
    ASSERT_TRUE(job.finish());
    EXPECT_EQ(job.network.most_waiting, 2 * in_flight);
    EXPECT_EQ(job.network.transport(0).counters().messages_sent, 10u);
  }
}

// The operations of a queue form one sequence of segments.
TEST(Executor, OperationsOfAQueueShareWhatIsInFlight) {
  constexpr int kOperations = 5;
  Job network(2, kSeed);
  std::vector<std::unique_ptr<Job>> jobs;
  const auto& one_shot = find_algorithm(CollectiveKind::allreduce, "one_shot");
  for (int rank = 0; rank < 2; ++rank) network.add_executor(rank, {4 * 10, 3});
  uint64_t allocations = 0;
  for (int repetition = 0; repetition < 3; ++repetition) {
    jobs.clear();
    for (int j = 0; j < kOperations; ++j) {
      auto& job = *jobs.emplace_back(std::make_unique<Job>(2, 0));
      Job::Setting setting;
      setting.counts = {j == 2 ? 3 : 40 + j};
      setting.through_bucket = setting.packs = true;
      setting.tag = static_cast<uint64_t>(repetition * kOperations + j);
      job.prepare(setting);
      job.members[0].launch.verdict = j == 3 ? 1 : 0;
      for (size_t rank = 0; rank < 2; ++rank) {
        auto& member = job.members[rank];
        member.launch.queue = 1;
        network.operations.push_back(
            network.executors[rank]->start(one_shot, member.collective, member.launch));
        network.states.push_back(OperationState::pending);
      }
    }
    EXPECT_EQ(network.network.transport(0).tickets(), 2u * 3u);
    ASSERT_TRUE(network.finish());
    EXPECT_LE(network.network.most_waiting, 2 * 4);
    for (int j = 0; j < kOperations; ++j)
      for (size_t rank = 0; rank < 2; ++rank) {
        const auto& member = jobs[static_cast<size_t>(j)]->members[rank];
        const auto state = network.states[static_cast<size_t>(2 * j) + rank];
        EXPECT_EQ(state, j == 3 ? OperationState::vetoed : OperationState::done);
        if (j == 3) {
          EXPECT_EQ(member.output, member.output_before);
          continue;
        }
        for (int64_t i = 0; i < (j == 2 ? 3 : 40 + j); ++i)
          ASSERT_EQ(member.result(i), sum_of_samples(2, i)) << j << " " << i;
      }
    network.operations.clear();
    network.states.clear();
    // Later repetitions reuse the memory of the first one.
    if (repetition > 0) {
      EXPECT_EQ(network.executors[0]->allocations(), allocations);
    }
    allocations = network.executors[0]->allocations();
  }
}

// An operation that is cancelled while it waits for its turn lets the others run.
TEST(Executor, ACancelledOperationLeavesItsQueue) {
  Job network(2, kSeed);
  std::vector<std::unique_ptr<Job>> jobs;
  const auto& ring = find_algorithm(CollectiveKind::allreduce, "ring");
  for (int rank = 0; rank < 2; ++rank) network.add_executor(rank, {4 * 10, 1});
  for (int j = 0; j < 3; ++j) {
    auto& job = *jobs.emplace_back(std::make_unique<Job>(2, 0));
    Job::Setting setting;
    setting.counts = {100};
    setting.tag = static_cast<uint64_t>(j);
    job.prepare(setting);
    for (size_t rank = 0; rank < 2; ++rank) {
      auto& member = job.members[rank];
      member.launch.queue = 0;
      network.operations.push_back(
          network.executors[rank]->start(ring, member.collective, member.launch));
      network.states.push_back(OperationState::pending);
    }
  }
  for (const size_t operation : {2, 3}) network.operations[operation]->cancel();
  ASSERT_TRUE(network.finish());
  for (size_t i = 0; i < 6; ++i)
    EXPECT_EQ(network.states[i], i == 2 || i == 3 ? OperationState::failed : OperationState::done);
  for (int64_t i = 0; i < 100; ++i) ASSERT_EQ(jobs[2]->members[1].result(i), sum_of_samples(2, i));
}

// After a veto no rank starts another segment.
TEST(Executor, AVetoedOperationEndsEarly) {
  Job job(3, kSeed);
  Job::Setting setting;
  setting.counts = {100};
  job.prepare(setting);
  job.members[1].launch.verdict = 1;
  job.run(find_algorithm(CollectiveKind::allreduce, "one_shot"), {4, 3});
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(job.states[static_cast<size_t>(rank)], OperationState::vetoed);
    EXPECT_EQ(job.network.transport(rank).counters().messages_sent, 2u * 3u);
  }
}

TEST(Executor, AFailedTransferFailsTheOperation) {
  Job job(3, kSeed);
  Job::Setting setting;
  setting.counts = {100};
  job.prepare(setting);
  job.start(find_algorithm(CollectiveKind::allreduce, "ring"), {64, 2});
  job.network.fail_one(1);
  for (int i = 0; i < 1000 && job.states[1] == OperationState::pending; ++i) {
    job.network.step();
    job.states[1] = job.operations[1]->advance();
  }
  EXPECT_EQ(job.states[1], OperationState::failed);
  EXPECT_EQ(job.network.transport(1).tickets(), 0u);
  job.operations[0]->cancel();
  job.operations[2]->cancel();
  EXPECT_TRUE(job.finish());
}

TEST(Executor, AverageDividesByTheContributors) {
  Job job(3, kSeed);
  Job::Setting setting;
  setting.counts = {5};
  setting.op = ReduceOp::average;
  for (const auto& algorithm : algorithms()) {
    if (algorithm.kind != CollectiveKind::allreduce) continue;
    job.prepare(setting);
    for (auto& member : job.members) member.launch.contributors = 2;
    job.run(algorithm, {});
    for (int64_t i = 0; i < 5; ++i)
      EXPECT_EQ(job.members[2].result(i), sum_of_samples(3, i) / 2) << algorithm.name;
  }
}

TEST(Executor, SendMeetsRecv) {
  Job job(2, kSeed);
  Job::Setting setting;
  setting.kind = CollectiveKind::send;
  setting.counts = {7};
  std::vector<float> sent = {1, 2, 3, 4, 5, 6, 7}, received(7);
  const Counts counts = {7};
  Collective collective{CollectiveKind::send,
                        DataType::f32,
                        ReduceOp::sum,
                        1,
                        reinterpret_cast<const std::byte*>(sent.data()),
                        nullptr,
                        counts,
                        {},
                        {}};
  job.operations.push_back(job.add_executor(0, {}).start(
      find_algorithm(CollectiveKind::send, "direct"), collective, {.tag = 3, .edges = {}}));
  collective.kind = CollectiveKind::recv;
  collective.root = 0;
  collective.input = nullptr;
  collective.output = reinterpret_cast<std::byte*>(received.data());
  job.operations.push_back(job.add_executor(1, {}).start(
      find_algorithm(CollectiveKind::recv, "direct"), collective, {.tag = 3, .edges = {}}));
  job.states.assign(2, OperationState::pending);
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(received, sent);
}

TEST(Executor, RefusesWhatMakesNoSense) {
  Job job(2, kSeed);
  Job::Setting setting;
  setting.counts = {4};
  setting.op = ReduceOp::band;
  job.prepare(setting);
  const auto& ring = find_algorithm(CollectiveKind::allreduce, "ring");
  const auto message = [&] { return test::refusal([&] { job.start(ring, {}); }); };
  EXPECT_EQ(message(), "allreduce on rank 0 of 2: op band cannot be applied to f32");
  job.members[0].collective.op = ReduceOp::sum;
  job.members[0].collective.send_counts = {};
  EXPECT_EQ(message(), "allreduce on rank 0 of 2: expected 1 counts, got 0");
}

// determinism=rank_order promises the same bits for all segment sizes and arrival orders.
TEST(RankOrder, GivesTheSameBitsOverRandomSegmentsAndDeliveries) {
  constexpr int kSize = 5, kCount = 97;
  std::mt19937_64 random(kSeed);
  std::normal_distribution<double> normal;
  for (const auto dtype : {DataType::f32, DataType::bf16}) {
    const auto bytes = size_of(dtype);
    std::vector<std::vector<std::byte>> inputs(
        kSize, std::vector<std::byte>(static_cast<size_t>(kCount * bytes)));
    for (auto& input : inputs)
      for (int64_t i = 0; i < kCount; ++i)
        test::set_number(dtype, input.data(), i, std::exp(4 * normal(random)) * normal(random));
    std::vector<std::byte> first;
    for (int round = 0; round < 1000; ++round) {
      const char* names[] = {"one_shot", "two_shot"};
      const auto& algorithm = find_algorithm(CollectiveKind::allreduce, names[random() % 2]);
      Job job(kSize, random());
      Job::Setting setting;
      setting.dtype = dtype;
      setting.op = ReduceOp::average;
      setting.scale = {0.75, 1};
      setting.counts = {kCount};
      setting.through_bucket = random() % 2 == 0;
      job.prepare(setting);
      for (size_t rank = 0; rank < kSize; ++rank)
        std::copy(inputs[rank].begin(), inputs[rank].end(), job.members[rank].input.begin());
      job.run(algorithm,
              {1 + static_cast<int64_t>(random() % 400), 1 + static_cast<int>(random() % 4)});
      for (const auto& member : job.members) {
        if (first.empty()) first = member.output;
        ASSERT_EQ(member.output, first) << "round " << round << " of seed " << kSeed;
      }
    }
  }
}

}  // namespace
}  // namespace tutti
