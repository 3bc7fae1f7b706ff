#pragma once

#include <cmath>
#include <concepts>
#include <functional>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/core/communicator.h"
#include "tutti/kernels/convert.h"

namespace tutti {

/// A parameter as a trainer knows it: a name that is equal on all ranks, its value and its
/// gradient.
template <class P>
concept Parameter = requires(const P& parameter) {
  { parameter.name } -> std::convertible_to<std::string_view>;
  { parameter.value } -> std::convertible_to<TensorView>;
  { parameter.gradient } -> std::convertible_to<TensorView>;
};

/// A Parameter for trainers whose own parameter type does not satisfy the concept.
struct NamedParameter {
  std::string name;     // equal on all ranks, and unique
  TensorView value;     // borrowed, like the gradient
  TensorView gradient;  // has the value's shape and dtype
};

/// A range whose items are parameters for a loop over `const auto&`. It may be a container or a
/// view, returned by value or by reference, constant or not, or a generator, which is read once.
template <class R>
concept YieldsParameters =
    std::ranges::range<R> && Parameter<std::remove_cvref_t<std::ranges::range_reference_t<R>>>;

/// A range like YieldsParameters, with named tensors as its items.
template <class R>
concept YieldsState = std::ranges::range<R> &&
    requires(const std::remove_cvref_t<std::ranges::range_reference_t<R>>& state) {
  { state.name } -> std::convertible_to<std::string_view>;
  { state.tensor } -> std::convertible_to<TensorView>;
};

/// An optimizer that distributed() can wrap. parameters() yields the same parameters in the same
/// order on every rank, for as long as the optimizer is wrapped. step() uses their gradients.
template <class O>
concept Optimizer = requires(O& optimizer) {
  requires YieldsParameters<decltype(optimizer.parameters())>;
  optimizer.step();
};

/// Optional. The optimizer calls back during backward with a parameter's name as soon as that
/// gradient is final. Gradients are then reduced while backward goes on; otherwise step() reduces
/// them.
template <class O>
concept AnnouncesGradients = requires(O& optimizer,
                                      std::function<void(std::string_view)> callback) {
  optimizer.on_gradient_ready(callback);
  optimizer.on_gradient_ready(nullptr);
};

/// Optional. Yields the optimizer's own named tensors (momenta), for broadcast_optimizer_state.
template <class O>
concept HasState = requires(O& optimizer) {
  requires YieldsState<decltype(optimizer.state())>;
};

/// Optional. Returns the learning rate of the last step, for policies that divide by it (SlowMo).
template <class O>
concept HasLearningRate = requires(O& optimizer) {
  { optimizer.learning_rate() } -> std::convertible_to<double>;
};

/// Optional. The optimizer reduces its gradients itself, for example because they are in a
/// GradientArena. reduce_gradient() starts the reduction of one gradient, and wait_for_gradients()
/// waits for those of a step.
template <class O>
concept ReducesGradients = requires(O& optimizer, std::string_view name,
                                    const ReduceOptions& options) {
  optimizer.reduce_gradient(name, options);
  optimizer.wait_for_gradients();
};

/// Says which optional members an optimizer has. An optimizer does not compile if it has a member
/// of such a name with another signature; otherwise that member would be silently ignored.
template <class O>
struct OptimizerTraits {
  static constexpr bool kAnnouncesGradients = AnnouncesGradients<O>;  // on_gradient_ready()
  static constexpr bool kHasState = HasState<O>;                      // state()
  static constexpr bool kHasLearningRate = HasLearningRate<O>;        // learning_rate()
  static constexpr bool kReducesGradients = ReducesGradients<O>;      // reduce_gradient()

  static_assert(kHasState ||
                    !(
                        requires(O & optimizer) { optimizer.state(); } || requires { &O::state; }),
                "the optimizer's state() must be callable without arguments and yield items with a "
                "name and a tensor that a TensorView borrows; otherwise give it another name");
  static_assert(
      kAnnouncesGradients ||
          !(
              requires(O & optimizer) { optimizer.on_gradient_ready(nullptr); } ||
              requires { &O::on_gradient_ready; }),
      "the optimizer's on_gradient_ready() must be a function that takes a "
      "std::function<void(std::string_view)>, or nullptr; otherwise give it another name");
  static_assert(
      kHasLearningRate || !requires(O & optimizer) { optimizer.learning_rate(); },
      "the optimizer's learning_rate() must return a number; otherwise give it another "
      "name");
  static_assert(kReducesGradients ||
                    !(
                        requires { &O::reduce_gradient; } || requires { &O::wait_for_gradients; } ||
                        requires(O & optimizer) { optimizer.wait_for_gradients(); }),
                "the optimizer must have both reduce_gradient(std::string_view, const "
                "ReduceOptions&) and wait_for_gradients(); otherwise give them other names");
};

/// Broadcasts the parameters of rank `root` to all ranks. Blocking.
template <YieldsParameters Parameters>
void broadcast_parameters(Communicator& comm, Parameters&& parameters, int root = 0) {
  std::vector<Work> works;
  for (const auto& parameter : parameters)
    works.push_back(
        comm.broadcast("parameter " + std::string(parameter.name), parameter.value, root));
  for (auto& work : works) work.wait();
}

/// Broadcasts the optimizer's own tensors from rank `root` to all ranks. Blocking. Every rank must
/// have the same number of tensors.
template <HasState O>
void broadcast_optimizer_state(Communicator& comm, O& optimizer, int root = 0) {
  std::vector<Work> works;
  for (const auto& state : optimizer.state())
    works.push_back(comm.broadcast("state " + std::string(state.name), state.tensor, root));
  for (auto& work : works) work.wait();
}

/// Scales gradients so that their norm over all parameters is at most `most`, and returns the norm
/// that they had. Call it between synchronize() and step(), when every rank holds the same
/// gradients. It takes f32 and f64 gradients in host memory.
template <YieldsParameters Parameters>
double clip_by_global_norm(Parameters&& parameters, double most) {
  double sum = 0;
  const auto add = [&]<class T>(const TensorView& gradient, T) {
    for (int64_t i = 0; i < gradient.count(); ++i) {
      const double value = gradient.as<T>()[i];
      sum += value * value;
    }
  };
  std::vector<TensorView> gradients;  // a generator yields them only once
  for (const auto& parameter : parameters) {
    const TensorView gradient = parameter.gradient;
    gradients.push_back(gradient);
    if (gradient.device().kind != DeviceKind::cpu)
      throw Error(ErrorCode::invalid_argument,
                  "clip_by_global_norm takes gradients in host memory, \"" +
                      std::string(parameter.name) + "\" is on " + to_string(gradient.device()) +
                      "; StepAgreement clips there")
          .with_tensor(parameter.name);
    if (gradient.dtype() == DataType::f32)
      add(gradient, float{});
    else if (gradient.dtype() == DataType::f64)
      add(gradient, double{});
    else
      throw Error(ErrorCode::invalid_argument,
                  "clip_by_global_norm takes f32 and f64 gradients, \"" +
                      std::string(parameter.name) + "\" is " +
                      std::string(to_string(gradient.dtype())))
          .with_tensor(parameter.name);
  }
  const double norm = std::sqrt(sum);
  if (norm > most && norm > 0)
    for (const auto& gradient : gradients)
      scale(gradient.dtype(), gradient.data(), gradient.count(), Scale{most / norm, 1});
  return norm;
}

}  // namespace tutti
