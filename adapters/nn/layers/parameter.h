#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tutti/tensor/tensor.h"

namespace tutti::nn {

using GradientReady = std::function<void(std::string_view name)>;

/// A handle of one parameter of a model: copies share value, gradient and listener.
struct Parameter {
  std::string name;
  Tensor value;
  Tensor gradient;
  /// Called by backward as soon as the gradient is final for this pass; may be empty.
  std::shared_ptr<GradientReady> ready;
};

/// A tensor of an optimizer's or a model's state, by name; copies share the memory.
struct NamedState {
  std::string name;
  Tensor tensor;
};

}  // namespace tutti::nn
