// An optimizer may return a container, a view or a generator, by value or by reference, constant or
// not. In each form all of its state is broadcast, saved and loaded.

#include <gtest/gtest.h>

#include <iterator>
#include <ranges>
#include <span>

#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/adapters/checkpoint/checkpoint_folder.h"
#include "tutti/adapters/distributed.h"
#include "tutti/adapters/sharded.h"

namespace tutti {
namespace {

struct FormParameter {
  std::string name;
  Tensor value, gradient;
};
struct FormState {
  std::string name;
  Tensor tensor;
};

// A range that can be iterated only once, and not if it is constant, like a coroutine's generator.
template <class Item>
class Generated {
 public:
  class Iterator {
   public:
    using value_type = Item;
    using difference_type = std::ptrdiff_t;
    explicit Iterator(Generated* from) : from_(from) {}
    Iterator(Iterator&&) = default;
    Iterator& operator=(Iterator&&) = default;
    Item operator*() const { return (*from_->items_)[from_->at_]; }
    Iterator& operator++() {
      ++from_->at_;
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return from_->at_ == from_->items_->size(); }

   private:
    Generated* from_;
  };
  explicit Generated(const std::vector<Item>& items) : items_(&items) {}
  Generated(Generated&&) = default;
  Iterator begin() { return Iterator(this); }
  static std::default_sentinel_t end() { return {}; }

 private:
  const std::vector<Item>* items_;
  size_t at_ = 0;
};

// Each of these is a `Form`: how an optimizer returns its items. Everything else is equal for all
// forms.
struct ByValue {
  template <class Item>
  static std::vector<Item> of(std::vector<Item>& items) {
    return items;
  }
};
struct ConstantByValue {
  template <class Item>
  static const std::vector<Item> of(std::vector<Item>& items) {
    return items;
  }
};
struct ByReference {
  template <class Item>
  static std::vector<Item>& of(std::vector<Item>& items) {
    return items;
  }
};
struct ByConstantReference {
  template <class Item>
  static const std::vector<Item>& of(std::vector<Item>& items) {
    return items;
  }
};
struct AsSpan {
  template <class Item>
  static std::span<const Item> of(std::vector<Item>& items) {
    return items;
  }
};
struct AsView {
  template <class Item>
  static auto of(std::vector<Item>& items) {
    return items | std::views::transform([](const Item& item) { return item; });
  }
};
// A filter view searches for its first item when begin() is called, so it cannot be constant.
struct AsFilter {
  template <class Item>
  static auto of(std::vector<Item>& items) {
    return items | std::views::filter([](const Item&) { return true; });
  }
};
struct AsGenerator {
  template <class Item>
  static Generated<Item> of(std::vector<Item>& items) {
    return Generated<Item>(items);
  }
};

template <class Form>
class Momentum {
 public:
  explicit Momentum(float start) {
    for (const char* name : {"w", "b"}) {
      list_.push_back({name, filled(4, start), filled(4, 0)});
      states_.push_back({std::string("velocity.") + name, filled(4, start)});
    }
  }
  decltype(auto) parameters() { return Form::of(list_); }
  decltype(auto) state() { return Form::of(states_); }
  void step() {
    for (size_t p = 0; p < list_.size(); ++p)
      for (int64_t i = 0; i < list_[p].value.count(); ++i) {
        float& velocity = states_[p].tensor.template as<float>()[i];
        velocity = 0.5F * velocity + list_[p].gradient.template as<float>()[i];
        list_[p].value.template as<float>()[i] -= velocity;
      }
  }
  float value() const { return list_[1].value.template as<float>()[3]; }
  float velocity() const { return states_[1].tensor.template as<float>()[3]; }
  void set_gradients(float gradient) {
    for (auto& one : list_)
      for (float& element : one.gradient.template span<float>()) element = gradient;
  }
  float gradient() const { return list_[0].gradient.template as<float>()[0]; }

 private:
  static Tensor filled(int64_t count, float value) {
    Tensor tensor(Shape{count}, DataType::f32);
    for (float& element : tensor.span<float>()) element = value;
    return tensor;
  }
  std::vector<FormParameter> list_;
  std::vector<FormState> states_;
};

template <class Form>
class OptimizerForms : public testing::Test {};
using Forms = testing::Types<ByValue, ConstantByValue, ByReference, ByConstantReference, AsSpan,
                             AsView, AsFilter, AsGenerator>;
TYPED_TEST_SUITE(OptimizerForms, Forms);

TYPED_TEST(OptimizerForms, ParametersAndMomentaAreBroadcastSavedAndLoaded) {
  using Descent = Momentum<TypeParam>;
  static_assert(Optimizer<Descent> && HasState<Descent>);
  const test::ScratchFolder scratch;
  test::run_threads(2, [&](Communicator& comm) {
    Descent descent(static_cast<float>(comm.rank() + 1));
    auto optimizer = distributed(comm, descent);
    EXPECT_EQ(descent.value(), 1);
    EXPECT_EQ(descent.velocity(), 1);
    descent.set_gradients(static_cast<float>(comm.rank()));
    optimizer.step();
    EXPECT_EQ(descent.velocity(), 1);
    EXPECT_EQ(descent.value(), 0);
    CheckpointFolder(comm, scratch.path()).save(1, optimizer.placed_state());
    Descent other(7);
    auto resumed = distributed(comm, other);
    CheckpointFolder(comm, scratch.path()).load(resumed.placed_state());
    EXPECT_EQ(other.velocity(), 1);
    EXPECT_EQ(other.value(), 0);
  });
}

TYPED_TEST(OptimizerForms, MomentaAreAveragedWithTheParameters) {
  test::run_threads(2, [](Communicator& comm) {
    Momentum<TypeParam> descent(0);
    auto optimizer = distributed(comm, descent, {.exchange = local_sgd(1, Momenta::averaged)});
    descent.set_gradients(static_cast<float>(2 * comm.rank()));
    optimizer.step();
    EXPECT_EQ(descent.velocity(), 1);
    EXPECT_EQ(descent.value(), -1);
  });
}

// Covers generators, which yield their items only once.
TYPED_TEST(OptimizerForms, GradientsAreClipped) {
  Momentum<TypeParam> descent(0);
  descent.set_gradients(1);
  EXPECT_DOUBLE_EQ(clip_by_global_norm(descent.parameters(), 0.5), std::sqrt(8.0));
  EXPECT_FLOAT_EQ(descent.gradient(), 0.5F / std::sqrt(8.0F));
}

// A sharded optimizer that returns its state in this form.
template <class Form>
struct ShardDescent {
  explicit ShardDescent(std::vector<Shard> shards) : list(std::move(shards)) {
    for (const auto& shard : list)
      states.push_back({"velocity." + shard.name, Tensor(shard.value.shape(), DataType::f32)});
  }
  decltype(auto) state() { return Form::of(states); }
  void step() {
    for (size_t p = 0; p < list.size(); ++p)
      for (int64_t i = 0; i < list[p].value.count(); ++i)
        states[p].tensor.template as<float>()[i] += list[p].gradient.template as<float>()[i];
  }
  std::vector<Shard> list;
  std::vector<FormState> states;
};

TYPED_TEST(OptimizerForms, ShardsAndTheirStateAreNamedWithTheirPlaces) {
  test::run_threads(2, [](Communicator& comm) {
    Momentum<TypeParam> whole(1);
    Sharded sharded(comm, whole.parameters(), {.stage = 1}, [](std::vector<Shard> shards) {
      return ShardDescent<TypeParam>(std::move(shards));
    });
    const auto state = sharded.state();
    ASSERT_EQ(state.size(), 4U);
    EXPECT_EQ(state[3].name, "optimizer.velocity.b");
    EXPECT_EQ(state[3].placement.held, Held::divided);
    EXPECT_EQ(sharded.state_bytes(), 16);
  });
}

}  // namespace
}  // namespace tutti
