// A rank that is limited to half a core gets fewer samples of each batch, by its measured speed.
// The result is that of the joined batch, and a step takes about as long as with the ideal split.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>

#include "tests/support/cpu_quota.h"
#include "tests/support/ranks.h"
#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/kernels/counter_random.h"
#include "tutti/nn.h"

namespace tutti::nn {
namespace {

// There are so many rows that the fixed cost of a step (the sum of gradients, the optimizer) is
// small.
constexpr int64_t kRows = 1024, kWidth = 256;
constexpr int kSteps = 80, kLast = 30;

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

Sequential make_model() {
  Sequential model(4);
  model.add("fc1", linear(kWidth, 4 * kWidth))
      .add("gelu1", gelu())
      .add("fc2", linear(4 * kWidth, 4 * kWidth))
      .add("gelu2", gelu())
      .add("fc3", linear(4 * kWidth, 10));
  return model;
}

std::pair<Tensor, Tensor> rows_of(uint32_t step, StepShare share) {
  const Tensor input(Shape{share.count, kWidth}, DataType::f32);
  const Tensor labels(Shape{share.count}, DataType::i64);
  const RandomKey key{.seed = 1, .purpose = random_purpose("rows"), .step = step};
  fill_random_normals(key, static_cast<uint64_t>(share.first * kWidth), input.span<float>());
  for (int64_t i = 0; i < share.count; ++i) labels.as<int64_t>()[i] = (share.first + i) % 10;
  return {input, labels};
}

// Rows per second of this rank, measured while it waits for nobody.
double speed_alone() {
  auto model = make_model();
  const auto step = [&] {
    const auto [input, labels] = rows_of(0, {0, kRows / 2});
    model.zero_grad();
    model.backward(CrossEntropy(model.forward(input), labels), 1.0);
  };
  step();
  const double begin = now();
  int64_t rows = 0;
  for (; now() - begin < 1; rows += kRows / 2) step();
  return static_cast<double>(rows) / (now() - begin);
}

struct Outcome {
  double ideal = 0, balanced = 0;  // seconds per step
  int64_t slow_share = 0;
  std::vector<float> weights;  // some of the final weights
};

Outcome train(Communicator& comm, bool follow_speed) {
  Outcome outcome;
  if (follow_speed) {
    std::vector<double> speeds(static_cast<size_t>(comm.size()));
    speeds[static_cast<size_t>(comm.rank())] = speed_alone();
    comm.allreduce_blocking("speeds", speeds, ReduceOp::sum);
    outcome.ideal = static_cast<double>(kRows) / (speeds[0] + speeds[1]);
  }
  auto model = make_model();
  Sgd sgd(model.parameters(), {.learning_rate = 0.01});
  auto optimizer = distributed(comm, sgd, {.op = ReduceOp::sum});
  StepAgreement agreement(
      comm, {.shares = {.samples = kRows, .follow_speed = follow_speed, .window = 0.5}});
  double begin = 0;
  int64_t share_of_last = 0;
  for (int step = 0; step < kSteps; ++step) {
    if (step == kSteps - kLast) {
      comm.barrier_blocking();
      begin = now();
    }
    const auto share = agreement.begin();
    const auto [input, labels] = rows_of(static_cast<uint32_t>(step), share);
    model.zero_grad();
    const CrossEntropy loss(model.forward(input), labels);
    model.backward(loss, agreement.divisor());
    agreement.send(loss);
    optimizer.synchronize();
    agreement.finish(sgd.parameters());
    optimizer.step();
    if (comm.rank() == 0 && agreement.shares().back() != share_of_last) {
      share_of_last = agreement.shares().back();
      std::fprintf(stderr, "step %d: the last rank gets %lld of %lld\n", step,
                   static_cast<long long>(share_of_last), static_cast<long long>(kRows));
    }
  }
  outcome.balanced = (now() - begin) / kLast;
  outcome.slow_share = agreement.shares().back();
  const auto values = model.parameters().back().value.span<float>();
  outcome.weights.assign(values.begin(), values.end());
  const auto more = model.parameters()[2].value.span<float>().first(1000);
  outcome.weights.insert(outcome.weights.end(), more.begin(), more.end());
  return outcome;
}

TEST(SlowRank, GetsAsMuchAsItCanDo) {
  if (const auto why = test::CpuQuota::unavailable(); !why.empty()) GTEST_SKIP() << why;
  const auto file = testing::TempDir() + "slow_rank_" + std::to_string(::getpid());
  const test::CpuQuota quota(0.5);
  std::vector<double> ratios;
  std::vector<std::vector<float>> weights;
  for (int round = 0; round < 4; ++round) {
    // The last round trains on one rank with the joined batch.
    const int size = round < 3 ? 2 : 1;
    test::run_processes(
        size,
        [&](Communicator& comm) {
          if (comm.rank() == 1) quota.join();
          const auto outcome = train(comm, comm.size() == 2);
          if (comm.rank() != 0) return;
          std::ofstream out(file);
          out.precision(9);
          out << outcome.ideal << ' ' << outcome.balanced << ' ' << outcome.slow_share;
          for (const float weight : outcome.weights) out << ' ' << weight;
        },
        [](Options& options) { options.backend = "shm"; }, 150);
    std::ifstream in(file);
    double ideal = 0, balanced = 0;
    int64_t slow_share = 0;
    ASSERT_TRUE(in >> ideal >> balanced >> slow_share);
    weights.emplace_back();
    for (float weight = 0; in >> weight;) weights.back().push_back(weight);
    if (size == 1) break;
    ratios.push_back(balanced / ideal);
    std::printf("round %d: %.1f ms a step, ideal %.1f ms: %.2fx; the slow rank has %lld of %lld\n",
                round, balanced * 1e3, ideal * 1e3, ratios.back(),
                static_cast<long long>(slow_share), static_cast<long long>(kRows));
    EXPECT_LT(slow_share, kRows / 2 - 4);
    EXPECT_GE(slow_share, 1);
  }
  ::unlink(file.c_str());
  std::sort(ratios.begin(), ratios.end());
  EXPECT_LE(ratios[1], 1.5);
  for (size_t round = 0; round < 3; ++round) {
    ASSERT_EQ(weights[round].size(), weights[3].size());
    for (size_t i = 0; i < weights[3].size(); ++i)
      ASSERT_NEAR(weights[round][i], weights[3][i], 1e-5 * (1 + std::abs(weights[3][i]))) << i;
  }
}

}  // namespace
}  // namespace tutti::nn
