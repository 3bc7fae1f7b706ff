#include "tutti/adapters/nn/sharded_adam.h"

#include <fmt/format.h>

#include <new>

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

float* zeros(int64_t bytes) {
  auto* memory = static_cast<float*>(std::calloc(static_cast<size_t>(bytes), 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

ShardedAdam::ShardedAdam(Communicator& communicator, std::vector<Array> arrays,
                         const AdamOptions& options, bool decoupled)
    : settings_{options.learning_rate,
                options.beta1,
                options.beta2,
                options.epsilon,
                options.weight_decay,
                decoupled,
                1},
      communicator_(communicator),
      arena_(communicator, checked(std::move(arrays)), ReduceOptions{}, &ShardedAdam::apply, this) {
  first_.reset(zeros(arena_.bytes()));
  second_.reset(zeros(arena_.bytes()));
}

void ShardedAdam::apply(void* self, int64_t offset, int64_t count, const std::byte* reduced) {
  auto& it = *static_cast<ShardedAdam*>(self);
  const auto n = static_cast<size_t>(count);
  const int64_t at = offset / static_cast<int64_t>(sizeof(float));
  adam_step(it.settings_, {reinterpret_cast<float*>(it.arena_.values()) + at, n},
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

void ShardedAdam::step() {
  arena_.wait();
  ++settings_.step;
}

}  // namespace tutti::nn
