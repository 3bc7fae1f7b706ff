#include "tutti/adapters/distributed.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/core/arena.h"

namespace tutti {
namespace {

using test::expect_refused;
using test::run_threads;

// A user's own trainer: two parameters, plain gradient descent, and hooks.
struct Param {
  std::string name;
  Tensor value, gradient;
};

struct State {
  std::string name;
  Tensor tensor;
};

struct PlainSgd {
  std::vector<Param> list;
  std::vector<State> states;
  float rate = 0.5f;
  int steps = 0;

  explicit PlainSgd(float start) {
    for (const char* name : {"w", "b"}) {
      list.push_back({name, Tensor(Shape{4}, DataType::f32), Tensor(Shape{4}, DataType::f32)});
      for (float& value : list.back().value.span<float>()) value = start;
    }
    states.push_back({"momentum", Tensor(Shape{2}, DataType::f32)});
    states[0].tensor.as<float>()[0] = start;
  }
  std::vector<Param>& parameters() { return list; }
  std::vector<State>& state() { return states; }
  void set_gradients(float w, float b) {
    for (float& value : list[0].gradient.span<float>()) value = w;
    for (float& value : list[1].gradient.span<float>()) value = b;
  }
  void step() {
    ++steps;
    for (auto& param : list)
      for (int64_t i = 0; i < param.value.count(); ++i)
        param.value.as<float>()[i] -= rate * param.gradient.as<float>()[i];
  }
  float w() const { return list[0].value.as<float>()[3]; }
  float b() const { return list[1].value.as<float>()[0]; }
};

// A PlainSgd that announces its gradients.
struct HookedSgd : PlainSgd {
  using PlainSgd::PlainSgd;
  std::function<void(std::string_view)> ready;
  void on_gradient_ready(std::function<void(std::string_view)> callback) {
    ready = std::move(callback);
  }
};

// Keeps the gradients in an arena, which reduces them itself.
struct ArenaSgd : HookedSgd {
  GradientArena arena;
  int waits = 0;
  ArenaSgd(Communicator& comm, float start)
      : HookedSgd(start), arena(comm, {{.name = "w", .shape = {4}}, {.name = "b", .shape = {4}}}) {
    for (auto& param : list) param.gradient = Tensor(arena[param.name], nullptr);
  }
  void reduce_gradient(std::string_view name, const ReduceOptions& options) {
    EXPECT_EQ(options.op, ReduceOp::average);
    arena.ready(name);
  }
  void wait_for_gradients() {
    ++waits;
    arena.wait();
  }
};

static_assert(!ReducesGradients<HookedSgd> && ReducesGradients<ArenaSgd>);
static_assert(Optimizer<PlainSgd> && !AnnouncesGradients<PlainSgd> && HasState<PlainSgd>);
static_assert(AnnouncesGradients<HookedSgd>);

// The gradient depends on the parameter: it is that of (w - 5)^2 / 2.
TEST(Distributed, TheFirstGradientIsOfRankZerosParametersAlready) {
  run_threads(3, [](Communicator& comm) {
    PlainSgd sgd(static_cast<float>(comm.rank() + 1));
    auto optimizer = distributed(comm, sgd);
    EXPECT_EQ(sgd.w(), 1.0f);
    EXPECT_EQ(sgd.states[0].tensor.as<float>()[0], 1.0f);
    sgd.set_gradients(sgd.w() - 5, 0);
    optimizer.step();
    EXPECT_EQ(sgd.w(), 1 - 0.5f * (1 - 5));
  });
}

// As above, but the gradients are announced, so they are exchanged during the first backward pass.
TEST(Distributed, SoIsTheFirstAnnouncedOne) {
  run_threads(2, [](Communicator& comm) {
    HookedSgd sgd(static_cast<float>(comm.rank() + 1));
    auto optimizer = distributed(comm, sgd);
    sgd.set_gradients(sgd.w() - 5, 0);
    sgd.ready("w");
    sgd.ready("b");
    optimizer.step();
    EXPECT_EQ(sgd.w(), 1 - 0.5f * (1 - 5));
  });
}

// If gradients are sums over the batch, the sum over ranks is the gradient of one rank with the
// whole batch.
TEST(Distributed, SumsForTrainersThatSumOverTheirBatch) {
  run_threads(4, [](Communicator& comm) {
    PlainSgd sgd(0);
    auto optimizer = distributed(comm, sgd, {.op = ReduceOp::sum});
    sgd.set_gradients(static_cast<float>(comm.rank()), 0);
    optimizer.step();
    EXPECT_EQ(sgd.w(), -0.5f * (0 + 1 + 2 + 3));
  });
}

TEST(Distributed, StepsAverage) {
  run_threads(3, [](Communicator& comm) {
    PlainSgd sgd(1);
    auto optimizer = distributed(comm, sgd);
    const auto rank = static_cast<float>(comm.rank());
    sgd.set_gradients(rank, 6 * rank);
    optimizer.step();
    EXPECT_EQ(sgd.w(), 1 - 0.5f);
    EXPECT_EQ(sgd.b(), 1 - 3.0f);
    for (int step = 0; step < 10; ++step) {
      sgd.set_gradients(rank, 6 * rank);
      optimizer.step();
    }
    EXPECT_EQ(sgd.w(), 1 - 0.5f * 11);
    EXPECT_EQ(sgd.b(), 1 - 3.0f * 11);
  });
}

TEST(Distributed, HooksGiveTheSameResult) {
  run_threads(2, [](Communicator& comm) {
    HookedSgd sgd(1);
    auto optimizer = distributed(comm, sgd);
    for (int step = 0; step < 10; ++step) {
      sgd.set_gradients(static_cast<float>(comm.rank()), 8.0f * static_cast<float>(comm.rank()));
      sgd.ready("b");
      if (step % 2 == 0) sgd.ready("w");  // step() exchanges gradients that were not announced
      optimizer.step();
    }
    EXPECT_EQ(sgd.w(), 1 - 0.25f * 10);
    EXPECT_EQ(sgd.b(), 1 - 2.0f * 10);
    expect_refused("\"x\" is not a parameter of the distributed optimizer",
                   [&] { sgd.ready("x"); });
  });
}

TEST(Distributed, OptimizersMayReduceGradientsThemselves) {
  run_threads(2, [](Communicator& comm) {
    ArenaSgd sgd(comm, 0);
    auto optimizer = distributed(comm, sgd, {.backward_passes_per_step = 2});
    for (int step = 0; step < 5; ++step) {
      sgd.set_gradients(static_cast<float>(comm.rank()), 8.0f * static_cast<float>(comm.rank()));
      sgd.ready("w");
      sgd.ready("w");
      expect_refused(
          "\"w\" got another gradient before step(): 2 backward passes belong to a step; call "
          "step() between them, or set backward_passes_per_step",
          [&] { sgd.ready("w"); });
      expect_refused("the gradient of \"w\" is on its way already; call synchronize() first",
                     [&] { optimizer.step_without_exchange(); });
      optimizer.step();
    }
    EXPECT_EQ(sgd.waits, 5);
    EXPECT_EQ(sgd.w(), -0.25f * 5);
    EXPECT_EQ(sgd.b(), -2.0f * 5);
  });
}

TEST(Distributed, ModelsAreComparedBetweenRanks) {
  run_threads(3, [](Communicator& comm) {
    std::vector<float> values(6);
    const std::vector<int64_t> columns = {1, 2};
    const auto matrix = TensorView(values.data(), {2, 3}, DataType::f32);
    const auto expect_differs = [&](const std::string& line, std::vector<NamedTensor> tensors) {
      std::vector<NamedTensor> expected = {{"a", matrix}, {"b", matrix}};
      const auto error = test::expect_error(ErrorCode::mismatch, "", [&] {
        check_tensors_alike(comm, comm.rank() == 2 ? tensors : expected);
      });
      EXPECT_EQ(error.what(), line + "; build the same model on every rank");
      EXPECT_EQ(error.rank(), 2);
    };
    expect_differs("parameter 0 is different on rank 2 and on rank 0: expected \"a\", got \"b\"",
                   {{"b", matrix}, {"a", matrix}});
    expect_differs(
        "parameter \"b\" has a different type or shape on rank 2 and on rank 0: expected f32[2,3], "
        "got "
        "f32[2,3] with strides [1,2]",
        {{"a", matrix}, {"b", matrix.with_strides(columns.data())}});
    expect_differs(
        "parameter \"a\" has a different type or shape on rank 2 and on rank 0: expected f32[2,3], "
        "got "
        "i32[6]",
        {{"a", TensorView(values.data(), {6}, DataType::i32)}, {"b", matrix}});
    expect_differs(
        "the model has a different number of parameters on rank 2 and on rank 0: expected 2, got "
        "1, "
        "and the first that only one of them has is \"b\"",
        {{"a", matrix}});
    expect_differs(
        "the model has a different number of parameters on rank 2 and on rank 0: expected 2, got "
        "3, "
        "and the first that only one of them has is \"c\"",
        {{"a", matrix}, {"b", matrix}, {"c", matrix}});
    check_tensors_alike(comm, std::vector<NamedTensor>{{"a", matrix}}, "buffer");
  });
}

TEST(Distributed, AccumulatesOverBackwardPasses) {
  run_threads(2, [](Communicator& comm) {
    HookedSgd sgd(0);
    auto optimizer = distributed(comm, sgd, {.backward_passes_per_step = 3});
    for (int pass = 0; pass < 3; ++pass) {
      sgd.set_gradients(static_cast<float>(pass + comm.rank()), 0);
      sgd.ready("w");
      sgd.ready("b");
    }
    expect_refused(
        "\"w\" got another gradient before step(): 3 backward passes belong to a step; call step() "
        "between them, or set backward_passes_per_step",
        [&] { sgd.ready("w"); });
    optimizer.step();
    EXPECT_EQ(sgd.w(), -0.5f * 2.5f);
    EXPECT_EQ(sgd.steps, 1);
  });
}

TEST(Distributed, ClippingBetweenSynchronizeAndStep) {
  run_threads(2, [](Communicator& comm) {
    PlainSgd sgd(0);
    auto optimizer = distributed(comm, sgd);
    sgd.set_gradients(comm.rank() == 0 ? 0.0f : 6.0f, 4);
    optimizer.synchronize();
    // All ranks have w = 3 and b = 4 in four elements each: the norm is 10.
    EXPECT_DOUBLE_EQ(clip_by_global_norm(sgd.parameters(), 5.0), 10.0);
    optimizer.step();
    EXPECT_FLOAT_EQ(sgd.w(), -0.5f * 1.5f);
  });
}

TEST(Distributed, ClippingTakesBothWideFloatsAndNoOther) {
  std::vector<Param> mixed;
  for (const auto dtype : {DataType::f64, DataType::f32})
    mixed.push_back({"w", Tensor(Shape{2}, dtype), Tensor(Shape{2}, dtype)});
  auto* wide = mixed[0].gradient.as<double>();
  auto* narrow = mixed[1].gradient.as<float>();
  wide[0] = 2, wide[1] = 4, narrow[0] = 4, narrow[1] = 8;
  EXPECT_EQ(clip_by_global_norm(mixed, 20), 10);
  EXPECT_EQ(wide[1], 4);  // below the limit, so unchanged
  EXPECT_EQ(clip_by_global_norm(mixed, 5), 10);
  EXPECT_EQ(wide[0], 1);
  EXPECT_EQ(wide[1], 2);
  EXPECT_EQ(narrow[0], 2);
  EXPECT_EQ(narrow[1], 4);
  mixed.push_back({"half", Tensor(Shape{2}, DataType::f16), Tensor(Shape{2}, DataType::f16)});
  expect_refused("clip_by_global_norm takes f32 and f64 gradients, \"half\" is f16",
                 [&] { clip_by_global_norm(mixed, 1); });
  EXPECT_EQ(wide[1], 2);
}

TEST(Distributed, PredivideAndWireKeepTheAverage) {
  run_threads(4, [](Communicator& comm) {
    PlainSgd sgd(0);
    auto optimizer = distributed(comm, sgd, {.predivide = 4.0, .wire = DataType::bf16});
    sgd.set_gradients(static_cast<float>(comm.rank() * 4), 0);
    optimizer.step();
    EXPECT_FLOAT_EQ(sgd.w(), -0.5f * 6);
  });
}

// The sum of three or four of these gradients overflows the wire type (f16). The mean must be right
// all the same, with predivide and without. Bits that f16 cannot hold are lost.
TEST(Distributed, SumsBeyondTheRangeOfTheWireHaveTheirMean) {
  run_threads(
      4,
      [](Communicator& comm) {
        for (const double predivide : {1.0, 4.0}) {
          PlainSgd sgd(0);
          auto optimizer = distributed(comm, sgd, {.predivide = predivide, .wire = DataType::f16});
          sgd.set_gradients(26'000.0f + 4'000.0f * static_cast<float>(comm.rank()), 1 + 0x1p-12f);
          optimizer.step();
          EXPECT_EQ(sgd.w(), -0.5f * 32'000) << predivide;
          EXPECT_EQ(sgd.b(), -0.5f) << predivide;
        }
      },
      [](Options& options) {
        options.backend = "tcp";
        options.algorithms = "allreduce:0-inf=ring";
      });
}

TEST(Distributed, StepWithoutExchangeIsRefusedWhileGradientsTravel) {
  run_threads(2, [](Communicator& comm) {
    HookedSgd sgd(0);
    auto optimizer = distributed(comm, sgd);
    sgd.set_gradients(static_cast<float>(2 * comm.rank()), 0);
    sgd.ready("w");
    expect_refused("the gradient of \"w\" is on its way already; call synchronize() first",
                   [&] { optimizer.step_without_exchange(); });
    EXPECT_EQ(sgd.steps, 0);
    optimizer.synchronize();
    optimizer.step_without_exchange();
    EXPECT_EQ(sgd.w(), -0.5f);
    EXPECT_EQ(sgd.steps, 1);
    // The next step exchanges gradients again.
    sgd.set_gradients(static_cast<float>(2 * comm.rank()), 0);
    optimizer.step();
    EXPECT_EQ(sgd.w(), -1.0f);
  });
}

TEST(Distributed, StepWithoutExchangeStaysLocal) {
  run_threads(2, [](Communicator& comm) {
    PlainSgd sgd(0);
    auto optimizer = distributed(comm, sgd, {.broadcast_first = false});
    sgd.set_gradients(static_cast<float>(comm.rank()), 0);
    optimizer.step_without_exchange();
    EXPECT_EQ(sgd.w(), -0.5f * static_cast<float>(comm.rank()));
  });
}

TEST(Distributed, NamesMustDiffer) {
  run_threads(1, [](Communicator& comm) {
    PlainSgd sgd(0);
    sgd.list[1].name = "w";
    test::expect_error(
        ErrorCode::duplicate_name,
        "two parameters are named \"w\"; gradients are matched by name, so each needs its own",
        [&] { distributed(comm, sgd); });
    sgd.list[1].name = "b";
    expect_refused("backward_passes_per_step is 0, expected at least 1",
                   [&] { distributed(comm, sgd, {.backward_passes_per_step = 0}); });
  });
}

}  // namespace
}  // namespace tutti
