// Stage 3 of ZeRO: the library never uses zeros in place of parameters that other ranks hold.

#include <gtest/gtest.h>

#include <cstring>

#include "tests/nn/sharded/sharded_parameters.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/nn.h"
#include "tutti/tensor/absent_memory.h"
#include "tutti/tensor/tensor.h"

namespace tutti::nn {
namespace {

constexpr const char* kText =
    "is divided over the ranks: here it reads as zeros; call need_all() of the sharded optimizer "
    "on "
    "every rank first, or take the parts that its state() names";

// All functions that take a tensor, with their names.
std::vector<std::pair<const char*, std::function<void()>>> takers(
    Communicator& comm, const std::vector<Parameter>& parameters, const std::string& folder) {
  return {
      {"allreduce", [&] { comm.allreduce("sum", parameters[0].value).wait(); }},
      {"allreduce_blocking", [&] { comm.allreduce_blocking("sum", parameters[0].value.view()); }},
      {"broadcast", [&] { broadcast_parameters(comm, parameters); }},
      {"allgather", [&] { comm.allgather("all", parameters[2].value).wait(); }},
      {"part of one",
       [&] { comm.allreduce("part", TensorView(parameters[2].value.as<float>() + 5, 2)).wait(); }},
      {"checkpoint",
       [&] { CheckpointFolder(comm, folder).save(1, placed_parameters(parameters)); }},
      {"sentinel", [&] { Sentinel(comm, parameters, 1).look(1); }},
      {"copy",
       [&] {
         std::vector<float> copy(static_cast<size_t>(parameters[0].value.count()));
         copy_to_host(reinterpret_cast<std::byte*>(copy.data()), parameters[0].value);
       }},
      {"on_host", [&] { static_cast<void>(on_host(parameters[0].value)); }},
      {"comparing",
       [&] {
         Sgd sgd(parameters, {});
         distributed(comm, sgd, {.broadcast_first = false});
       }},
      {"dividing again",
       [&] { ShardedOptimizer<Sgd>(comm, parameters, SgdOptions{}, {.stage = 1}); }},
  };
}

TEST(Absent, NoZerosAreSentSavedOrCompared) {
  const test::ScratchFolder scratch;
  test::run_threads(2, [&](Communicator& comm) {
    auto parameters = made(1);
    const auto expect_all_refused = [&] {
      for (const auto& [name, take] : takers(comm, parameters, scratch.path())) {
        SCOPED_TRACE(name);
        test::expect_refused(kText, take);
      }
    };
    {
      ShardedOptimizer<Adam> sharded(comm, parameters, AdamOptions{}, {.stage = 3});
      expect_all_refused();
      test::expect_refused(kText, [&] { sharded.parameters(); });
      test::expect_refused("\"first.weight\" f32[7,3] is divided",
                           [&] { broadcast_parameters(comm, sharded.parameters()); });
      sharded.need(parameters[0].name);
      comm.allreduce("one", parameters[0].value).wait();
      sharded.done(parameters[0].name);
      expect_all_refused();
      sharded.step();
      expect_all_refused();
      CheckpointFolder checkpoints(comm, scratch.path());
      checkpoints.save(1, sharded.state());
      EXPECT_TRUE(checkpoints.load(sharded.state()));
      sharded.need_all();
      EXPECT_EQ(sharded.parameters().size(), parameters.size());
      EXPECT_NE(parameters[3].value.as<float>()[0], 0);
    }
    // The optimizer was destroyed while all parameters were whole.
    comm.barrier_blocking();
    for (const auto& [name, take] : takers(comm, parameters, scratch.path())) {
      SCOPED_TRACE(name);
      EXPECT_NO_THROW(take());
    }
  });
  EXPECT_FALSE(AbsentMemory::any());
}

TEST(Absent, AnAgreementOnAListOfThemIsRefused) {
  test::run_threads(2, [&](Communicator& comm) {
    const auto gatherer = std::make_shared<Gatherer>();
    Sequential model;
    model.add("fc", gathered(linear(4, 3), gatherer));
    const auto parameters = model.parameters();
    ShardedOptimizer<Adam> sharded(comm, parameters, AdamOptions{}, {.stage = 3});
    sharded.serve(gatherer);
    StepAgreement agreement(comm);
    const CrossEntropy loss(model.forward(Tensor(Shape{2, 4}, DataType::f32)),
                            Tensor(Shape{2}, DataType::i64));
    model.backward(loss, agreement.divisor());
    agreement.send(loss);
    sharded.synchronize();
    test::expect_refused("\"fc.weight\" f32[3,4] is divided",
                         [&] { agreement.finish(parameters); });
  });
}

TEST(Absent, AModelKeepsThemToItself) {
  test::run_threads(2, [&](Communicator& comm) {
    auto gatherer = std::make_shared<Gatherer>();
    Sequential model;
    model.add("fc", gathered(linear(4, 3), gatherer));
    const int64_t count = model.parameter_count();
    const Tensor input(Shape{2, 4}, DataType::f32);
    {
      ShardedOptimizer<Adam> sharded(comm, model.parameters(), AdamOptions{}, {.stage = 3});
      sharded.serve(gatherer);
      model.forward(input);
      test::expect_refused("\"fc.weight\" f32[3,4] is divided", [&] { model.parameters(); });
      EXPECT_EQ(model.parameter_count(), count);
      // After need_all(), layers do not release their parameters until the next step.
      sharded.need_all();
      model.forward(input);
      EXPECT_NE(model.parameters()[0].value.as<float>()[0], 0);
      sharded.step();
    }
    // The optimizer is gone, so the parameters cannot be gathered any more.
    test::expect_refused(kText, [&] { model.parameters(); });
    test::expect_refused(kText, [&] { model.forward(input); });
    comm.barrier_blocking();
  });
  EXPECT_FALSE(AbsentMemory::any());
}

// A layer that was not gathered is refused instead of computing with zeros.
TEST(Absent, ALayerThatIsNotGatheredIsRefused) {
  test::run_threads(2, [&](Communicator& comm) {
    Sequential model, sequences;
    model.add("fc", linear(4, 3));
    sequences.add("words", embedding(5, 3));
    ShardedOptimizer<Sgd> one(comm, model.parameters(), SgdOptions{}, {.stage = 3});
    test::expect_refused("\"fc.weight\" f32[3,4] is divided", [&] {
      model.forward(Tensor(Shape{2, 4}, DataType::f32));
    });
    one.need_all();
    model.forward(Tensor(Shape{2, 4}, DataType::f32));
    ShardedOptimizer<Sgd> other(comm, sequences.parameters(), SgdOptions{}, {.stage = 3});
    test::expect_refused("\"words.weight\" f32[5,3] is divided", [&] {
      sequences.forward(Tensor(Shape{2, 2}, DataType::i64));
    });
    comm.barrier_blocking();
  });
}

}  // namespace
}  // namespace tutti::nn
