// Collectives that a loss can be differentiated through: their values, and the gradients of the sum
// of all ranks' losses.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/adapters/torch/functions.h"
#include "tutti/adapters/torch/sync_batch_norm.h"

namespace {

using tutti::Communicator;
using tutti::test::expect_refused;
using tutti::test::run_threads;

constexpr int kRanks = 3;

// Rank r's input has the shape [rows, 2] with the value r + 1, in column-major order. Its loss is r
// + 1 times the sum of the output. Output and gradient each have one value per row.
void expect_rows(const std::function<torch::Tensor(Communicator&, const torch::Tensor&)>& function,
                 const std::function<int64_t(int rank)>& rows,
                 const std::function<std::vector<float>(int rank)>& outputs,
                 const std::function<std::vector<float>(int rank)>& gradients) {
  run_threads(kRanks, [&](Communicator& comm) {
    const int rank = comm.rank();
    auto input = torch::full({2, rows(rank)}, rank + 1, torch::kFloat).t().requires_grad_();
    const auto output = function(comm, input);
    (output * (rank + 1)).sum().backward();
    const auto expect = [&](const torch::Tensor& got, const std::vector<float>& values) {
      const auto expected = torch::tensor(values).unsqueeze(1).expand({-1, 2});
      EXPECT_TRUE(torch::allclose(got, expected)) << "rank " << rank << ": " << got;
    };
    expect(output.detach(), outputs(rank));
    expect(input.grad(), gradients(rank));
  });
}

int64_t two_rows(int) { return 2; }

TEST(TorchFunctions, Allreduce) {
  for (const auto op : {tutti::ReduceOp::sum, tutti::ReduceOp::average}) {
    const float factor = op == tutti::ReduceOp::sum ? 1 : 1.0f / kRanks;
    const auto both = [&](int) { return std::vector<float>(2, 6 * factor); };
    expect_rows(
        [&](Communicator& comm, const torch::Tensor& input) {
          return tutti::torch::allreduce(comm, "x", input, op);
        },
        two_rows, both, both);
  }
  run_threads(1, [](Communicator& comm) {
    expect_refused(
        "\"x\" on rank 0: an allreduce with a gradient takes sum and average, not max; "
        "detach the tensor and call the communicator's",
        [&] { tutti::torch::allreduce(comm, "x", torch::ones({2}), tutti::ReduceOp::max); });
  });
}

TEST(TorchFunctions, AllgatherOfDifferentNumbersOfRows) {
  expect_rows([](Communicator& comm,
                 const torch::Tensor& input) { return tutti::torch::allgather(comm, "x", input); },
              [](int rank) { return rank + 1; },
              [](int) { return std::vector<float>{1, 2, 2, 3, 3, 3}; },
              [](int rank) { return std::vector<float>(static_cast<size_t>(rank) + 1, 6); });
}

TEST(TorchFunctions, Broadcast) {
  expect_rows(
      [](Communicator& comm, const torch::Tensor& input) {
        return tutti::torch::broadcast(comm, "x", input, 1);
      },
      two_rows, [](int) { return std::vector<float>(2, 2); },
      [](int rank) { return std::vector<float>(2, rank == 1 ? 6 : 0); });
}

// Four rows are divided into two, one and one.
TEST(TorchFunctions, ReduceScatterWithARemainder) {
  expect_rows(
      [](Communicator& comm, const torch::Tensor& input) {
        return tutti::torch::reduce_scatter(comm, "x", input);
      },
      [](int) { return 4; }, [](int rank) { return std::vector<float>(rank == 0 ? 2 : 1, 6); },
      [](int) {
        return std::vector<float>{1, 1, 2, 3};
      });
}

// Every rank sends no row to rank 0, one row to rank 1 and two rows to rank 2.
TEST(TorchFunctions, AlltoallByLists) {
  expect_rows(
      [](Communicator& comm, const torch::Tensor& input) {
        return tutti::torch::alltoall(comm, "x", input, std::vector<int64_t>{0, 1, 2});
      },
      [](int) { return 3; },
      [](int rank) {
        std::vector<float> rows;
        for (int from = 0; from < kRanks; ++from)
          rows.insert(rows.end(), static_cast<size_t>(rank), static_cast<float>(from + 1));
        return rows;
      },
      [](int) {
        return std::vector<float>{2, 3, 3};
      });
}

// Ranks with 5, 0 and 3 samples are compared with BatchNorm over all 8.
TEST(TorchFunctions, SyncBatchNormIsBatchNormOfTheJoinedBatch) {
  torch::manual_seed(3);
  const auto options = torch::kFloat64;
  const auto joined = torch::randn({8, 4, 3}, options) * 2 + 1;
  const auto weights_of_loss = torch::randn({8, 4, 3}, options);
  torch::nn::BatchNorm1d alone(4);
  alone->to(options);
  auto input = joined.clone().requires_grad_();
  const auto expected = alone(input);
  (expected * weights_of_loss).sum().backward();
  run_threads(kRanks, [&](Communicator& comm) {
    const int64_t begin = comm.rank() == 0 ? 0 : 5, end = comm.rank() < 2 ? 5 : 8;
    tutti::torch::SyncBatchNorm norm(comm, "norm", 4);
    norm->to(options);
    auto own = joined.slice(0, begin, end).clone().requires_grad_();
    const auto output = norm(own);
    EXPECT_TRUE(torch::allclose(output, expected.slice(0, begin, end)));
    (output * weights_of_loss.slice(0, begin, end)).sum().backward();
    EXPECT_TRUE(torch::allclose(own.grad(), input.grad().slice(0, begin, end)));
    const auto of_weight = tutti::torch::allreduce(comm, "weight", norm->weight.grad());
    EXPECT_TRUE(torch::allclose(of_weight, alone->weight.grad()));
    EXPECT_TRUE(torch::allclose(norm->running_mean, alone->running_mean));
    EXPECT_TRUE(torch::allclose(norm->running_var, alone->running_var));
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
    norm->eval();
    if (comm.rank() == 0) {
      const torch::NoGradGuard no_grad;
      const auto by_hand = (joined - alone->running_mean.unsqueeze(1)) /
                           (alone->running_var.unsqueeze(1) + 1e-5).sqrt();
      EXPECT_TRUE(torch::allclose(norm(joined), by_hand));
      expect_refused("\"norm\" on rank 0 got an input of shape [8,3], expected [batch, 4, ...]",
                     [&] {
                       norm(torch::ones({8, 3}));
                     });
    }
  });
}

// The statistics of an ordinary layer do not fit into 16 bits: the sums overflow, and in f16 the
// count does too.
TEST(TorchFunctions, SyncBatchNormOfEveryTypeIsThatOfTheJoinedBatch) {
  struct Type {
    torch::ScalarType type;
    double tolerance;
  };
  struct Batch {
    int64_t samples, side;  // samples of a rank; rows and columns of pixels
    double mean, deviation;
  };
  constexpr int64_t kFeatures = 2;
  for (const auto& [type, tolerance] : {Type{torch::kFloat16, 2e-3}, Type{torch::kBFloat16, 1e-2},
                                        Type{torch::kFloat32, 1e-4}, Type{torch::kFloat64, 1e-9}})
    for (const auto& [samples, side, mean, deviation] :
         {Batch{4, 1, 1, 2}, Batch{6, 56, 2, 1}, Batch{12, 56, 0, 1.2}, Batch{22, 56, 10, 0.1}}) {
      SCOPED_TRACE(torch::toString(type) + (" of " + std::to_string(samples)));
      torch::manual_seed(3);
      const std::vector<int64_t> shape = {kRanks * samples, kFeatures, side, side};
      const auto drawn = [&](double about, double width) {
        return (torch::randn(shape) * width + about).to(type);
      };
      const auto joined = drawn(mean, deviation), weights_of_loss = drawn(0, 1);
      torch::nn::BatchNorm2d alone(kFeatures);
      alone->to(torch::kFloat64);
      auto input = joined.to(torch::kFloat64, false, true).requires_grad_();  // copies the values
      const auto expected = alone(input);
      (expected * weights_of_loss.to(torch::kFloat64)).sum().backward();
      const auto far = [](const torch::Tensor& got, const torch::Tensor& right) {
        const double scale = std::max(1.0, right.abs().max().item<double>());
        return (got.to(torch::kFloat64) - right).abs().max().item<double>() / scale;
      };
      run_threads(kRanks, [&](Communicator& comm) {
        const auto part = [&](const torch::Tensor& all) {
          return all.slice(0, comm.rank() * samples, (comm.rank() + 1) * samples);
        };
        tutti::torch::SyncBatchNorm norm(comm, "norm", kFeatures);
        if (type == torch::kFloat64) norm->to(type);  // mixed precision keeps the norm in f32
        auto own = part(joined).clone().requires_grad_();
        const auto output = norm(own);
        EXPECT_EQ(output.scalar_type(), type);
        EXPECT_LT(far(output, part(expected)), tolerance);
        (output * part(weights_of_loss)).sum().backward();
        EXPECT_LT(far(own.grad(), part(input.grad())), tolerance);
        EXPECT_LT(far(norm->running_mean, alone->running_mean), 1e-5);
        EXPECT_LT(far(norm->running_var, alone->running_var), 1e-5);
      });
    }
}

TEST(TorchFunctions, SyncBatchNormOfEmptyBatchesKeepsItsStatistics) {
  run_threads(2, [](Communicator& comm) {
    tutti::torch::SyncBatchNorm norm(comm, "norm", 4);
    auto input = torch::ones({0, 4, 3}).requires_grad_();
    const auto output = norm(input);
    EXPECT_EQ(output.sizes(), input.sizes());
    output.sum().backward();
    EXPECT_TRUE(torch::equal(norm->running_mean, torch::zeros({4})));
    EXPECT_TRUE(torch::equal(norm->running_var, torch::ones({4})));
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
    EXPECT_TRUE(norm->weight.grad().isfinite().all().item<bool>());
  });
}

}  // namespace
