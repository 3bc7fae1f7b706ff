// The user's own optimizer under distributed().
#include <functional>

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

// Gradient descent with rate 1. It counts its steps in a tensor.
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
  void set_gradient(size_t parameter, double gradient) {
    for (float& value : list[parameter].gradient.span<float>())
      value = static_cast<float>(gradient);
  }
  void expect(double value) const {
    for (size_t i = 0; i < list.size(); ++i) expect_value(i, value);
  }
  void expect_value(size_t parameter, double value) const {
    expect_elements(list[parameter].value, [&](int64_t) { return value; });
  }
  void expect_gradients(double gradient) const {
    for (const auto& one : list) expect_elements(one.gradient, [&](int64_t) { return gradient; });
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

// step() does not exchange the gradients again that synchronize() has exchanged.
TUTTI_CASE(Optimizer, ClippingBetweenSynchronizeAndStep) {
  Descent descent({"w"}, 0);
  auto optimizer = distributed(comm, descent);
  descent.set_gradients(comm.rank() == 0 ? 4 * comm.size() : 0);
  optimizer.synchronize();
  EXPECT_EQ(clip_by_global_norm(descent.parameters(), 2), 8);
  descent.expect_gradients(1);
  // The ranks' gradients differ again; step() must not exchange them.
  descent.set_gradients(comm.rank() + 1);
  optimizer.step();
  descent.expect(-(comm.rank() + 1));
}

// A Descent that announces its gradients.
struct AnnouncingDescent : Descent {
  using Descent::Descent;
  std::function<void(std::string_view)> ready;
  void on_gradient_ready(std::function<void(std::string_view)> callback) {
    ready = std::move(callback);
  }
};

// In each step only rank `step % size` uses "sometimes" and announces its gradient, which stays
// zero on the others. All ranks announce "always", and none announces "never".
TUTTI_CASE(Optimizer, OnlySomeRanksAnnounceAGradient) {
  AnnouncingDescent descent({"always", "sometimes", "never"}, 0);
  auto optimizer = distributed(comm, descent);
  const int size = comm.size();
  for (int step = 0; step < 3 * size; ++step) {
    const bool uses = comm.rank() == step % size;
    descent.set_gradients(0);
    descent.set_gradient(0, 2 * comm.rank());
    if (uses) descent.set_gradient(1, size);
    descent.set_gradient(2, 4 * comm.rank());
    if (uses) descent.ready("sometimes");
    descent.ready("always");
    optimizer.step();
  }
  descent.expect_value(0, -3 * size * (size - 1));
  descent.expect_value(1, -3 * size);
  descent.expect_value(2, -3 * size * 2 * (size - 1));
}

TUTTI_CASE(Optimizer, ProcessSets) {
  in_process_set(comm, [&](Communicator& set) {
    Descent descent({"w", "b"}, comm.rank() % 2);
    auto optimizer = distributed(set, descent);
    for (int i = 0; i < 5; ++i) {
      descent.set_gradients(2 * set.rank() + comm.rank() % 2);
      optimizer.step();
    }
    // The mean is over the ranks of this set alone.
    descent.expect(comm.rank() % 2 - 5 * (set.size() - 1 + comm.rank() % 2));
  });
}

// Each half of the model lives in one set of ranks. All ranks share the head.
TUTTI_CASE(Optimizer, ModelParallel) {
  const auto half = comm.split(comm.rank() % 2);
  Descent own({comm.rank() % 2 == 0 ? "even" : "odd"}, 0), head({"head"}, 0);
  auto own_optimizer = distributed(*half, own);
  auto head_optimizer = distributed(comm, head);
  for (int i = 0; i < 5; ++i) {
    own.set_gradients(2 * half->rank() + comm.rank() % 2);
    head.set_gradients(comm.rank() == 0 ? comm.size() : 0);
    own_optimizer.step();
    head_optimizer.step();
  }
  own.expect(-5 * (half->size() - 1 + comm.rank() % 2));
  head.expect(-5);
}

}  // namespace
}  // namespace tutti::test
