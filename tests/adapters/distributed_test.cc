#include "tutti/adapters/distributed.h"

#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace tutti {
namespace {

using test::run_threads;

// A trainer of one's own: two parameters, plain gradient descent, hooks.
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
};

// The same with announcements.
struct HookedSgd : PlainSgd {
  using PlainSgd::PlainSgd;
  std::function<void(std::string_view)> ready;
  void on_gradient_ready(std::function<void(std::string_view)> callback) {
    ready = std::move(callback);
  }
};

static_assert(Optimizer<PlainSgd> && !AnnouncesGradients<PlainSgd> && HasState<PlainSgd>);
static_assert(AnnouncesGradients<HookedSgd>);

// A gradient that depends on the parameter, as gradients do: of (w - target)^2 / 2.
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

// The same for announced ones, which travel during the first backward.
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

// Where gradients are sums over the batch, the sum over ranks is what one rank with it all has.
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
    sgd.set_gradients(static_cast<float>(comm.rank()), 2);
    optimizer.step();
    EXPECT_EQ(sgd.w(), 1 - 0.5f);
    for (int step = 0; step < 10; ++step) {
      sgd.set_gradients(static_cast<float>(comm.rank()), 2);
      optimizer.step();
    }
    EXPECT_EQ(sgd.w(), 1 - 0.5f * 11);
  });
}

TEST(Distributed, HooksGiveTheSameResult) {
  run_threads(2, [](Communicator& comm) {
    HookedSgd sgd(1);
    auto optimizer = distributed(comm, sgd);
    for (int step = 0; step < 10; ++step) {
      sgd.set_gradients(static_cast<float>(comm.rank()), 2);
      sgd.ready("b");
      if (step % 2 == 0) sgd.ready("w");  // what did not fire is exchanged by step()
      optimizer.step();
    }
    EXPECT_EQ(sgd.w(), 1 - 0.25f * 10);
    EXPECT_THROW(sgd.ready("x"), Error);
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
    EXPECT_THROW(sgd.ready("w"), Error);
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
    // All ranks hold w = 3 and b = 4, four elements each: norm 10.
    EXPECT_DOUBLE_EQ(clip_by_global_norm(sgd.parameters(), 5.0), 10.0);
    optimizer.step();
    EXPECT_FLOAT_EQ(sgd.w(), -0.5f * 1.5f);
  });
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
    EXPECT_THROW(distributed(comm, sgd), Error);
  });
}

}  // namespace
}  // namespace tutti
