#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "tutti/adapters/nn/kernels/optimizer_steps.h"
#include "tutti/adapters/nn/sharded.h"
#include "tutti/adapters/sharded/pages.h"
#include "tutti/base/error.h"

namespace tutti::nn {

namespace {

std::vector<GradientArena::Array> checked(std::vector<GradientArena::Array> arrays) {
  for (const auto& array : arrays)
    if (array.dtype != DataType::f32)
      throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is {}; ShardedAdam updates f32",
                                                           array.name, to_string(array.dtype)))
          .with_tensor(array.name);
  return arrays;
}

std::vector<std::string> names_of(const std::vector<GradientArena::Array>& arrays) {
  std::vector<std::string> names;
  for (const auto& array : arrays) names.push_back(array.name);
  return names;
}

// Makes the tensor whole on all ranks. Before this, each element is this rank's value or zero, and
// ranks that both have an element have the same value.
void take_from_owners(Communicator& communicator, const Tensor& tensor, const std::string& name) {
  const auto least = tensor.clone();
  auto highest =
      communicator.allreduce("ShardedAdam highest " + name, tensor.view(), ReduceOp::max);
  auto lowest = communicator.allreduce("ShardedAdam lowest " + name, least.view(), ReduceOp::min);
  highest.wait();
  lowest.wait();
  for (int64_t i = 0; i < tensor.count(); ++i)
    if (!(tensor.as<float>()[i] > 0)) tensor.as<float>()[i] = least.as<float>()[i];
}

float* zeros(int64_t bytes) {
  auto* memory = static_cast<float*>(std::calloc(static_cast<size_t>(bytes), 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

ShardedAdam::ShardedAdam(Communicator& communicator, std::vector<Array> arrays,
                         const AdamOptions& options, bool decoupled)
    : settings_(std::make_unique<AdamSettings>(AdamSettings{options.learning_rate, options.beta1,
                                                            options.beta2, options.epsilon,
                                                            options.weight_decay, decoupled, 1})),
      communicator_(communicator),
      names_(names_of(arrays)),
      arena_(communicator, checked(std::move(arrays)), ReduceOptions{}, &ShardedAdam::apply, this) {
  first_.reset(zeros(arena_.bytes()));
  second_.reset(zeros(arena_.bytes()));
}

ShardedAdam::~ShardedAdam() = default;

int64_t ShardedAdam::steps() const { return settings_->step - 1; }

void ShardedAdam::set_learning_rate(double learning_rate) {
  settings_->learning_rate = learning_rate;
}

void ShardedAdam::apply(void* self, int64_t offset, int64_t count, const std::byte* reduced) {
  auto& it = *static_cast<ShardedAdam*>(self);
  const auto n = static_cast<size_t>(count);
  const int64_t at = offset / static_cast<int64_t>(sizeof(float));
  if (it.finds_share_) {
    const std::lock_guard lock(it.mutex_);
    it.share_.push_back({at, at + count});
  }
  adam_step(*it.settings_, {reinterpret_cast<float*>(it.arena_.values()) + at, n},
            {reinterpret_cast<const float*>(reduced), n}, {it.first_.get() + at, n},
            {it.second_.get() + at, n});
}

std::span<float> ShardedAdam::value(std::string_view name) const {
  const auto view = arena_.value(name);
  return {view.as<float>(), static_cast<size_t>(view.count())};
}

std::span<float> ShardedAdam::gradient(std::string_view name) const {
  const auto view = arena_[name];
  return {view.as<float>(), static_cast<size_t>(view.count())};
}

void ShardedAdam::broadcast(int root) {
  communicator_.broadcast_blocking(
      "ShardedAdam.values", TensorView(arena_.values(), Shape{arena_.bytes()}, DataType::u8), root);
}

float* ShardedAdam::moments_of(const Moments& moments, const std::string& name) const {
  return moments.get() +
         (arena_.value(name).as<float>() - reinterpret_cast<float*>(arena_.values()));
}

std::vector<NamedState> ShardedAdam::state() {
  std::vector<NamedState> all;
  for (const auto* moments : {&first_, &second_})
    for (const auto& name : names_) {
      const Tensor tensor(arena_.value(name).shape(), DataType::f32);
      std::memcpy(tensor.data(), moments_of(*moments, name), static_cast<size_t>(tensor.bytes()));
      all.push_back({(moments == &first_ ? "first_moment." : "second_moment.") + name, tensor});
      take_from_owners(communicator_, tensor, all.back().name);
    }
  all.push_back({"steps", Tensor(Shape{1}, DataType::i64)});
  *all.back().tensor.as<int64_t>() = steps();
  return all;
}

void ShardedAdam::restore(const std::vector<NamedState>& state) {
  const auto find = [&](const std::string& name, int64_t count, DataType dtype) {
    for (const auto& one : state)
      if (one.name == name && one.tensor.count() == count && one.tensor.dtype() == dtype)
        return one.tensor;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("ShardedAdam: no \"{}\" of {} {} in the state to restore", name, count,
                            to_string(dtype)))
        .with_tensor(name);
  };
  const auto steps = find("steps", 1, DataType::i64);
  for (const bool copies : {false, true})
    for (const auto* moments : {&first_, &second_})
      for (const auto& name : names_) {
        const auto tensor = find((moments == &first_ ? "first_moment." : "second_moment.") + name,
                                 arena_.value(name).count(), DataType::f32);
        if (copies)
          std::memcpy(moments_of(*moments, name), tensor.data(),
                      static_cast<size_t>(tensor.bytes()));
      }
  settings_->step = *steps.as<int64_t>() + 1;
  finds_share_ = true;
}

// Zeroes the moments that other ranks update. Otherwise state() would mistake the restored values
// of these moments for the owners' values.
void ShardedAdam::forget_others_shares() {
  std::sort(share_.begin(), share_.end(),
            [](const auto& one, const auto& other) { return one.begin < other.begin; });
  const int64_t all = arena_.bytes() / static_cast<int64_t>(sizeof(float));
  share_.push_back({all, all});
  for (auto* moments : {first_.get(), second_.get()}) {
    int64_t before = 0;
    for (const auto& range : share_) {
      if (range.begin > before)
        drop_contents(TensorView(moments + before, Shape{range.begin - before}, DataType::f32));
      before = std::max(before, range.end);
    }
  }
  share_.clear();
  finds_share_ = false;
}

void ShardedAdam::step() {
  arena_.wait();
  ++settings_->step;
  if (finds_share_) forget_others_shares();
}

}  // namespace tutti::nn
