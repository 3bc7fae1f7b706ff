// An optimizer of the user's own under distributed().
#include "tests/api/case.h"
#include "tutti/adapters/distributed.h"

namespace tutti::test {
namespace {

struct NamedValue {
  std::string name;
  Tensor value, gradient;
};
struct NamedState {
  std::string name;
  Tensor tensor;
};

// Gradient descent at rate 1 that counts its steps in a tensor.
struct Descent {
  std::vector<NamedValue> list;
  std::vector<NamedState> states;

  Descent(const std::vector<std::string>& names, double start) {
    for (const auto& name : names) {
      const auto value = make_tensor(Shape{4}, DataType::f32, [&](int64_t) { return start; });
      list.push_back({name, value, Tensor(Shape{4}, DataType::f32)});
    }
    states.push_back(
        {"steps", make_tensor(Shape{1}, DataType::f64, [&](int64_t) { return start; })});
  }
  std::vector<NamedValue>& parameters() { return list; }
  std::vector<NamedState>& state() { return states; }
  void step() {
    ++states[0].tensor.as<double>()[0];
    for (auto& one : list)
      for (int64_t i = 0; i < 4; ++i) one.value.as<float>()[i] -= one.gradient.as<float>()[i];
  }
  void set_gradients(double gradient) {
    for (auto& one : list)
      for (float& value : one.gradient.span<float>()) value = static_cast<float>(gradient);
  }
  void expect(double value) const {
    for (const auto& one : list) expect_elements(one.value, [&](int64_t) { return value; });
  }
};

TUTTI_CASE(Optimizer, BroadcastsParametersAndState) {
  const int root = comm.size() - 1;
  Descent descent({"w", "b"}, comm.rank());
  broadcast_parameters(comm, descent.parameters(), root);
  descent.expect(root);
  broadcast_optimizer_state(comm, descent, root);
  EXPECT_EQ(descent.states[0].tensor.as<double>()[0], root);
}

TUTTI_CASE(Optimizer, DuplicateNamesAreRefused) {
  Descent descent({"w", "w"}, 0);
  const auto error = error_of([&] { distributed(comm, descent); });
  EXPECT_EQ(error.code(), ErrorCode::duplicate_name);
  EXPECT_EQ(error.tensor(), "w");
  expect_still_works(comm);
}

// What synchronize() has exchanged, step() does not exchange again.
TUTTI_CASE(Optimizer, ClippingBetweenSynchronizeAndStep) {
  Descent descent({"w"}, 0);
  auto optimizer = distributed(comm, descent);
  descent.set_gradients(comm.rank() == 0 ? 4 * comm.size() : 0);
  optimizer.synchronize();
  EXPECT_EQ(clip_by_global_norm(descent.parameters(), 2), 8);
  optimizer.step();
  descent.expect(-1);
}

TUTTI_CASE(Optimizer, ProcessSets) {
  in_process_set(comm, [&](Communicator& set) {
    Descent descent({"w", "b"}, comm.rank() % 2);
    auto optimizer = distributed(set, descent);
    descent.set_gradients(comm.rank() % 2 + 1);
    for (int i = 0; i < 5; ++i) optimizer.step();
    descent.expect(comm.rank() % 2 - 5 * (comm.rank() % 2 + 1));
  });
}

// Each half of the model lives in one set of ranks; only the head is everybody's.
TUTTI_CASE(Optimizer, ModelParallel) {
  const auto half = comm.split(comm.rank() % 2);
  Descent own({comm.rank() % 2 == 0 ? "even" : "odd"}, 0), head({"head"}, 0);
  auto own_optimizer = distributed(*half, own);
  auto head_optimizer = distributed(comm, head);
  for (int i = 0; i < 5; ++i) {
    own.set_gradients(comm.rank() % 2 + 1);
    head.set_gradients(comm.rank() == 0 ? comm.size() : 0);
    own_optimizer.step();
    head_optimizer.step();
  }
  own.expect(-5 * (comm.rank() % 2 + 1));
  head.expect(-5);
}

}  // namespace
}  // namespace tutti::test
