// ZeRO 1, 2 and 3 are compared bit by bit with one optimizer that has all parameters. Also covers
// the memory that a rank holds, and refusals.

#include "tutti/adapters/nn/sharded.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/nn/sharded/sharded_parameters.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/adapters/checkpoint/checkpoint_folder.h"
#include "tutti/adapters/distributed.h"
#include "tutti/adapters/nn/layers/loss.h"
#include "tutti/adapters/nn/sequential.h"

namespace tutti::nn {
namespace {

int64_t all_elements() {
  int64_t count = 0;
  for (const auto& [name, shape] : kParameters) count += shape.count();
  return count;
}

void add_gradients(const std::vector<Parameter>& parameters, int rank, int step) {
  std::mt19937 random(static_cast<unsigned>(rank * 1000 + step));
  std::normal_distribution<float> normal;
  for (const auto& parameter : parameters)
    for (float& gradient : parameter.gradient.span<float>()) gradient += normal(random);
}

void equal_to_the_bit(const std::vector<Parameter>& got, const std::vector<Parameter>& expected,
                      const std::string& when) {
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(std::memcmp(got[i].value.data(), expected[i].value.data(),
                          static_cast<size_t>(got[i].value.bytes())),
              0)
        << got[i].name << " " << when;
}

struct ShardedRun {
  int stage = 1;
  double clip = 0;  // 0: no clipping
  bool announced = true;
};

// Takes five steps of ZeRO and of one Adam that has all parameters; the learning rate falls.
void equals_plain_adam(Communicator& comm, const ShardedRun& run) {
  const AdamOptions adam{.learning_rate = 0.1, .weight_decay = 0.01};
  auto whole = made(3), parts = made(comm.rank() == 0 ? 3 : 4);  // all ranks get rank 0's values
  Adam plain(whole, adam);
  ShardedOptimizer<Adam> sharded(comm, parts, adam, {.stage = run.stage, .ahead = 2});
  for (int step = 0; step < 5; ++step) {
    for (auto* optimizer : {&plain, &sharded.optimizer()})
      optimizer->set_learning_rate(0.1 / (1 + step));
    for (const auto& parameter : parts) {
      sharded.need(parameter.name);
      // One parameter is not released before the step, and must still be updated.
      if (&parameter != &parts[2]) sharded.done(parameter.name);
    }
    sharded.zero_grad();
    for (const auto& parameter : whole)
      std::memset(parameter.gradient.data(), 0, static_cast<size_t>(parameter.gradient.bytes()));
    add_gradients(whole, comm.rank(), step);
    add_gradients(parts, comm.rank(), step);
    if (run.announced)
      for (size_t i = parts.size(); i-- > 0;) (*parts[i].ready)(parts[i].name);
    for (const auto& parameter : whole)
      comm.allreduce("plain " + parameter.name, parameter.gradient.view()).wait();
    if (run.clip > 0) {
      const double norm = sharded.clip_by_global_norm(run.clip);
      EXPECT_NEAR(tutti::clip_by_global_norm(whole, run.clip) / norm, 1, 1e-12);
    }
    plain.step();
    sharded.step();
    sharded.need_all();
    if (run.clip > 0) {
      for (size_t i = 0; i < parts.size(); ++i)
        for (int64_t k = 0; k < parts[i].value.count(); ++k)
          ASSERT_NEAR(parts[i].value.as<float>()[k], whole[i].value.as<float>()[k], 1e-5);
    } else {
      equal_to_the_bit(parts, whole, "after step " + std::to_string(step));
    }
  }
}

// bf16 keeps eight bits: a value between two of its numbers arrives as the nearest one.
TEST(Sharded, GradientsTravelInTheTypeThatWasAskedFor) {
  test::run_threads(2, [](Communicator& comm) {
    for (const std::optional<DataType> wire : {std::optional<DataType>(), {DataType::bf16}}) {
      const Tensor value(Shape{64}, DataType::f32), gradient(Shape{64}, DataType::f32);
      ShardedParameters sharded(comm, {{"w", value, gradient}}, {.wire = wire});
      for (float& number : gradient.span<float>()) number = 1.0009765625f;  // 1 + 2^-10
      sharded.wait_for_gradients();
      for (const float number : sharded.shards()[0].gradient.span<float>())
        EXPECT_EQ(number, wire ? 1.0f : 1.0009765625f);
    }
  });
}

TEST(Sharded, EveryStageEqualsPlainAdamToTheBit) {
  for (int size = 1; size <= 5; ++size)
    for (int stage = 1; stage <= 3; ++stage) {
      SCOPED_TRACE("ZeRO-" + std::to_string(stage) + " on " + std::to_string(size));
      test::run_threads(
          size, [&](Communicator& comm) { equals_plain_adam(comm, {.stage = stage}); },
          in_rank_order);
    }
}

TEST(Sharded, OverEveryBackendOfProcesses) {
  for (const char* backend : {"shm", "tcp"})
    for (int stage = 1; stage <= 3; ++stage) {
      SCOPED_TRACE(std::string(backend) + " ZeRO-" + std::to_string(stage));
      test::run_processes(
          3,
          [&](Communicator& comm) {
            equals_plain_adam(comm, {.stage = stage, .announced = comm.rank() != 1});
          },
          [&](Options& options) {
            in_rank_order(options);
            options.backend = backend;
          });
    }
}

TEST(Sharded, NormsCountEveryElementOnce) {
  for (const int size : test::rank_counts({1, 2, 4}))
    for (int stage = 1; stage <= 3; ++stage)
      test::run_threads(
          size, [&](Communicator& comm) { equals_plain_adam(comm, {.stage = stage, .clip = 0.5}); },
          in_rank_order);
  test::run_threads(3, [](Communicator& comm) {
    std::vector<float> same(4, 3.0F), own(2, 2.0F);
    const double norm =
        global_norm(comm, {{"same", same, {Shape{4}}},
                           {"own", own, {Shape{6}, Held::divided, comm.size(), comm.rank()}}});
    EXPECT_DOUBLE_EQ(norm, std::sqrt(4 * 9 + 6 * 4));
  });
}

// Layer-wise rates depend on the norms of whole tensors, and on whether a tensor is a matrix.
template <class O, class Options>
void layerwise_equals_whole(Communicator& comm, const Options& options, int stage) {
  auto whole = made(3), parts = made(3);
  O plain(whole, options);
  ShardedOptimizer<O> sharded(comm, parts, options, {.stage = stage});
  for (int step = 0; step < 4; ++step) {
    for (const auto& parameter : whole) {
      std::memset(parameter.gradient.data(), 0, static_cast<size_t>(parameter.gradient.bytes()));
    }
    sharded.zero_grad();
    add_gradients(whole, comm.rank(), step);
    add_gradients(parts, comm.rank(), step);
    for (const auto& parameter : whole)
      comm.allreduce("plain " + parameter.name, parameter.gradient.view()).wait();
    plain.step();
    sharded.step();
    sharded.need_all();
    for (size_t i = 0; i < parts.size(); ++i)
      for (int64_t k = 0; k < parts[i].value.count(); ++k)
        ASSERT_NEAR(parts[i].value.template as<float>()[k], whole[i].value.template as<float>()[k],
                    1e-6 * std::max(1.0F, std::abs(whole[i].value.template as<float>()[k])))
            << parts[i].name << " step " << step << " rank " << comm.rank();
  }
}

TEST(Sharded, LayerwiseRatesGoByTheNormsOfWholeTensors) {
  for (const int size : test::rank_counts({1, 2, 3, 5}))
    for (int stage = 1; stage <= 3; ++stage)
      test::run_threads(
          size,
          [&](Communicator& comm) {
            layerwise_equals_whole<Lars>(
                comm, LarsOptions{.learning_rate = 1, .weight_decay = 0.1, .trust = 0.1}, stage);
            layerwise_equals_whole<Lamb>(
                comm, LambOptions{.learning_rate = 0.1, .weight_decay = 0.1}, stage);
          },
          in_rank_order);
}

// A skipped step changes nothing, and the next step works.
TEST(Sharded, AStepIsSkipped) {
  for (int stage = 1; stage <= 3; ++stage)
    test::run_threads(2, [&](Communicator& comm) {
      auto parameters = made(1);
      ShardedOptimizer<Adam> sharded(comm, parameters, AdamOptions{}, {.stage = stage});
      const auto before = made(1);
      add_gradients(parameters, comm.rank(), 0);
      sharded.skip();
      sharded.need_all();
      equal_to_the_bit(parameters, before, "after a step that was skipped");
      sharded.zero_grad();
      add_gradients(parameters, comm.rank(), 1);
      sharded.step();
      sharded.need_all();
      EXPECT_NE(parameters[0].value.as<float>()[0], before[0].value.as<float>()[0]);
    });
}

// Returns the bytes of the tensor's whole pages that are in memory.
int64_t resident(const TensorView& tensor) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(tensor.data()) + page - 1) / page * page;
  const auto end =
      (reinterpret_cast<uintptr_t>(tensor.data()) + static_cast<uintptr_t>(tensor.bytes())) / page *
      page;
  if (begin >= end) return 0;
  std::vector<unsigned char> there((end - begin) / page);
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(begin), end - begin, there.data()), 0);
  int64_t bytes = 0;
  for (const auto one : there) bytes += (one & 1) * static_cast<int64_t>(page);
  return bytes;
}

TEST(Sharded, ARankHoldsWhatItsStageSays) {
  const int64_t all = 4 * all_elements();
  for (int stage = 1; stage <= 3; ++stage)
    test::run_threads(4, [&](Communicator& comm) {
      auto parameters = made(1);
      ShardedOptimizer<Adam> sharded(comm, parameters, AdamOptions{}, {.stage = stage});
      for (int step = 0; step < 2; ++step) {
        sharded.zero_grad();
        for (const auto& parameter : parameters) {
          sharded.need(parameter.name);
          sharded.done(parameter.name);
        }
        add_gradients(parameters, comm.rank(), step);
        for (const auto& parameter : parameters) sharded.gradient_ready(parameter.name);
        sharded.step();
      }
      const auto near = [&](int64_t got, double expected, const char* what) {
        EXPECT_NEAR(static_cast<double>(got), expected, 0.01 * static_cast<double>(all) + 64)
            << what << " at stage " << stage;
      };
      const double whole = static_cast<double>(all), part = whole / 4;
      near(sharded.memory().values, stage == 3 ? part : whole + part, "values");
      near(sharded.memory().gradients, stage == 1 ? whole + part : part, "gradients");
      near(sharded.state_bytes(), 2 * part, "state");
      // The memory that the counters report as released is really released: only pages at the ends
      // of tensors remain.
      int64_t values = 0, gradients = 0;
      for (const auto& parameter : parameters) {
        values += resident(parameter.value);
        gradients += resident(parameter.gradient);
      }
      EXPECT_EQ(values > 3 * 4096, stage < 3) << values;
      EXPECT_EQ(gradients > 3 * 4096, stage < 2) << gradients;
    });
}

// Each job loads the checkpoint of the job before, at another stage and on another number of ranks.
TEST(Sharded, CheckpointsLoadIntoAnyStageAndNumberOfRanks) {
  const test::ScratchFolder scratch;
  const auto trained = [&](Communicator& comm, int stage, bool loads, int64_t saves_as) {
    auto parameters = made(1);
    ShardedOptimizer<Adam> sharded(comm, parameters, AdamOptions{}, {.stage = stage});
    CheckpointFolder checkpoints(comm, scratch.path());
    if (loads) {
      checkpoints.load(sharded.state());
      sharded.refresh();
    }
    for (const auto& parameter : parameters)
      for (float& gradient : parameter.gradient.span<float>()) gradient = 0.25F;
    sharded.step();
    checkpoints.save(saves_as, sharded.state());
    sharded.need_all();
    return parameters;
  };
  auto whole = made(1);
  Adam plain(whole, AdamOptions{});
  int64_t step = 0;
  for (const auto& [size, stage] :
       std::vector<std::pair<int, int>>{{4, 3}, {3, 2}, {1, 1}, {2, 3}, {5, 1}}) {
    for (const auto& parameter : whole)
      for (float& gradient : parameter.gradient.span<float>()) gradient = 0.25F;
    plain.step();
    ++step;
    test::run_threads(size, [&, stage = stage](Communicator& comm) {
      const auto parameters = trained(comm, stage, step > 1, step);
      equal_to_the_bit(parameters, whole, "at step " + std::to_string(step));
    });
  }
  // The last checkpoint also loads into replicated tensors.
  test::run_threads(2, [&](Communicator& comm) {
    auto parameters = made(9);
    Adam adam(parameters, AdamOptions{});
    auto state = placed_parameters(parameters);
    for (auto& tensor : placed_state(adam.state())) state.push_back(tensor);
    CheckpointFolder(comm, scratch.path()).load(state);
    equal_to_the_bit(parameters, whole, "replicated");
    for (size_t i = 0; i < adam.state().size(); ++i)
      EXPECT_EQ(std::memcmp(adam.state()[i].tensor.data(), plain.state()[i].tensor.data(),
                            static_cast<size_t>(plain.state()[i].tensor.bytes())),
                0)
          << adam.state()[i].name;
  });
}

TEST(Sharded, BadInput) {
  test::run_threads(2, [](Communicator& comm) {
    auto parameters = made(1);
    const auto make = [&](const ShardedOptions& options) {
      ShardedOptimizer<Adam>(comm, parameters, AdamOptions{}, options);
    };
    test::expect_refused("sharded: stage is 4, expected 1, 2 or 3", [&] { make({.stage = 4}); });
    test::expect_refused("sharded: ahead is -1, expected 0 or more", [&] { make({.ahead = -1}); });
    test::expect_refused("sharded: op is max, expected average or sum",
                         [&] { make({.op = ReduceOp::max}); });
    test::expect_error(ErrorCode::mismatch, "expected stage=1, got stage=2",
                       [&] { make({.stage = comm.rank() + 1}); });
    parameters[1].gradient = Tensor(Shape{2}, DataType::f32);
    test::expect_refused(
        "sharded: \"first.bias\" is f32[1] with a gradient f32[2], expected both f32",
        [&] { make({}); });
    parameters = made(1);
    parameters[1].name = "bias";
    test::expect_error(ErrorCode::duplicate_name, "sharded: two parameters are named \"bias\"",
                       [&] { make({}); });
    parameters = made(comm.rank() == 0 ? 1 : 2);
    test::expect_error(ErrorCode::mismatch,
                       "parameter \"first.weight\" begins with different values",
                       [&] { make({.broadcast_first = false}); });
    parameters = made(1);
    ShardedOptimizer<Adam> sharded(comm, parameters, AdamOptions{}, {});
    test::expect_refused("\"x\" is not a parameter of the sharded optimizer",
                         [&] { sharded.gradient_ready("x"); });
    sharded.gradient_ready("bias");
    test::expect_refused("\"bias\" got another gradient before step(); call step() between",
                         [&] { sharded.gradient_ready("bias"); });
    sharded.step();
    std::vector<int32_t> counts(2);
    test::expect_refused(
        "global_norm takes f32 and f64 in host memory that are divided or replicated, \"n\" is i32 "
        "on cpu",
        [&] {
          global_norm(comm, {{"n", counts, {Shape{2}}}});
        });
    test::expect_refused("\"g\" is f32 on cpu, a partial sum", [&] {
      std::vector<float> sum(2);
      global_norm(comm, {{"g", sum, {Shape{2}, Held::partial_sum, 2, comm.rank()}}});
    });
  });
}

}  // namespace
}  // namespace tutti::nn
