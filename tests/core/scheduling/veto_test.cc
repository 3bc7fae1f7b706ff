// A rank that deviates from a plan vetoes. All ranks drop the bucket, and no memory changes until
// all ranks have agreed.

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/collectives/schedule.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

constexpr int kTensors = 6;
constexpr int kCount = 300;  // elements of each tensor; a bucket holds two tensors

struct Step {
  std::vector<std::vector<float>> gradients;
  explicit Step(int rank) {
    for (int t = 0; t < kTensors; ++t) {
      gradients.emplace_back(kCount);
      for (int i = 0; i < kCount; ++i)
        gradients.back()[static_cast<size_t>(i)] = static_cast<float>(rank * 100 + t * 10 + i % 7);
    }
  }
};

float expected(int size, int t, int i) {
  return static_cast<float>(size * (size - 1) / 2 * 100 + size * (t * 10 + i % 7));
}

std::string name_of(int t) { return "t" + std::to_string(t); }

// In one step after the plan is locked, rank `odd` submits the tensor `changed` with another shape.
// All ranks must get the mismatch error for it, keep its bytes, and get the right sums of all other
// tensors.
void run_case(int size, const std::string& algorithm, int odd, int changed) {
  SCOPED_TRACE(algorithm + " size " + std::to_string(size) + " odd rank " + std::to_string(odd) +
               " tensor " + std::to_string(changed));
  test::run_threads(
      size,
      [&](Communicator& comm) {
        constexpr int kSteps = 9, kOdd = 6;
        for (int step = 0; step < kSteps; ++step) {
          Step data(comm.rank());
          const auto before = data.gradients[static_cast<size_t>(changed)];
          std::vector<Work> works;
          for (int t = 0; t < kTensors; ++t) {
            auto& gradient = data.gradients[static_cast<size_t>(t)];
            TensorView view(gradient);
            if (step == kOdd && comm.rank() == odd && t == changed)
              view = view.reshaped(Shape{kCount / 3, 3});
            works.push_back(comm.allreduce(name_of(t), view, ReduceOp::sum));
          }
          for (int t = 0; t < kTensors; ++t) {
            auto& work = works[static_cast<size_t>(t)];
            const auto& gradient = data.gradients[static_cast<size_t>(t)];
            if (step == kOdd && t == changed) {
              EXPECT_EQ(test::expect_error(ErrorCode::mismatch, "", [&] { work.wait(); }).tensor(),
                        name_of(changed));
              EXPECT_EQ(std::memcmp(gradient.data(), before.data(), sizeof(float) * kCount), 0);
              continue;
            }
            work.wait();
            for (int i = 0; i < kCount; ++i) {
              const float sum = expected(size, t, i);
              if (gradient[static_cast<size_t>(i)] != sum) {
                ASSERT_EQ(gradient[static_cast<size_t>(i)], sum)
                    << "step " << step << " tensor " << t << " element " << i;
              }
            }
          }
        }
        EXPECT_EQ(comm.statistics().vetoed_buckets, 1u);
      },
      [&](Options& options) {
        options.replay_after = 2;
        options.fusion_bytes = 2 * kCount * 4;
        options.segment_bytes = 700;
        options.algorithms = "allreduce:0-inf=" + algorithm;
      });
}

TEST(Veto, AtEveryBucketForEveryAlgorithm) {
  for (const auto& algorithm : algorithms()) {
    if (algorithm.kind != CollectiveKind::allreduce) continue;
    for (int changed = 0; changed < kTensors; changed += 2)
      run_case(3, std::string(algorithm.name), (changed / 2 + 1) % 3, changed);
  }
}

// A tensor is cut into pieces. Some of them are complete when a later piece is vetoed.
TEST(Veto, InsideAPartitionedTensor) {
  for (const int size : {2, 3})
    test::run_threads(
        size,
        [&](Communicator& comm) {
          for (int step = 0; step < 9; ++step) {
            std::vector<float> big(1000, 1.0f), small(10, 2.0f);
            std::vector<Work> works;
            works.push_back(comm.allreduce("big", big, ReduceOp::sum));
            if (step == 6 && comm.rank() == size - 1) {
              works[0].wait();
              works.push_back(comm.allreduce("small", small, ReduceOp::sum));
            } else {
              works.push_back(comm.allreduce("small", small, ReduceOp::sum));
            }
            for (auto& work : works) work.wait();
            for (const float value : big) ASSERT_EQ(value, static_cast<float>(size));
            for (const float value : small) ASSERT_EQ(value, static_cast<float>(2 * size));
          }
        },
        [](Options& options) {
          options.replay_after = 2;
          options.partition_bytes = 800;
        });
}

// The group's tensor "large" is complete when the bucket of "small" is vetoed, because "alone" does
// not come in this step. The rest of the group is negotiated without "large".
TEST(Veto, InsideAGroup) {
  for (const int size : {2, 3})
    test::run_threads(
        size,
        [&](Communicator& comm) {
          for (int step = 0; step < 12; ++step) {
            std::vector<float> large(300, 1.0f), small(10, 2.0f), alone(10, 3.0f);
            auto group = comm.grouped_allreduce(
                "group", std::vector<NamedTensor>{{"large", large}, {"small", small}},
                {.op = ReduceOp::sum});
            if (step % 6 != 5) comm.allreduce("alone", alone, ReduceOp::sum).wait();
            group.wait(Deadline::after(60));
            for (const float value : large) ASSERT_EQ(value, static_cast<float>(size));
            for (const float value : small) ASSERT_EQ(value, static_cast<float>(2 * size));
          }
          EXPECT_GE(comm.statistics().vetoed_buckets, 1u);
        },
        [](Options& options) {
          options.replay_after = 2;
          options.fusion_bytes = 1200;  // "small" and "alone" share a bucket behind that of "large"
        });
}

// Two of a group's tensors are in the plan and one is new. The negotiation of the rest of the group
// counts both planned ones.
TEST(Veto, AGroupWithANewMember) {
  test::run_threads(
      2,
      [](Communicator& comm) {
        for (int step = 0; step < 12; ++step) {
          std::vector<float> a(10, 1.0f), b(20, 2.0f), c(30, 3.0f);
          auto group = comm.grouped_allreduce(
              "group",
              std::vector<NamedTensor>{{"a", a}, {"b", b}, {step % 6 == 5 ? "new" : "c", c}},
              {.op = ReduceOp::sum});
          group.wait(Deadline::after(10));
          for (const float value : a) ASSERT_EQ(value, 2.0f);
          for (const float value : b) ASSERT_EQ(value, 4.0f);
          for (const float value : c) ASSERT_EQ(value, 6.0f);
        }
        EXPECT_GE(comm.statistics().vetoed_buckets, 1u);
      },
      [](Options& options) { options.replay_after = 2; });
}

// The name of a send and receive belongs to its two ranks. So all ranks may also use the name for
// an allreduce, in a plan or not.
TEST(Veto, SendAndReceiveOfAPlannedNameGoTheirOwnWay) {
  test::run_threads(
      3,
      [](Communicator& comm) {
        for (int step = 0; step < 12; ++step) {
          std::vector<float> reduced(100, 1.0f), sent(10, static_cast<float>(step)), got(10);
          std::vector<Work> works;
          const auto reduce = [&] { works.push_back(comm.allreduce("x", reduced, ReduceOp::sum)); };
          if (step % 2 == 0) reduce();
          if (comm.rank() == 0) works.push_back(comm.send("x", sent, 1));
          if (comm.rank() == 1) works.push_back(comm.recv("x", got, 0));
          if (step % 2 != 0) reduce();
          for (auto& work : works) work.wait();
          ASSERT_EQ(reduced[99], 3.0f);
          if (comm.rank() == 1) {
            ASSERT_EQ(got[9], static_cast<float>(step));
          }
        }
        EXPECT_GT(comm.statistics().replayed_buckets, 5u);
        EXPECT_EQ(comm.statistics().vetoed_buckets, 0u);
      },
      [](Options& options) { options.replay_after = 2; });
}

}  // namespace
}  // namespace tutti
