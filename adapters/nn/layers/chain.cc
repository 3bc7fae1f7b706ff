#include <fmt/format.h>

#include "tutti/adapters/nn/layers/layers.h"
#include "tutti/base/error.h"

namespace tutti::nn {

Chain& Chain::add(std::string name, std::unique_ptr<Layer> layer) {
  for (const auto& [other, existing] : layers_)
    if (other == name)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("two layers are named \"{}\"; each needs its own name", name));
  layers_.emplace_back(std::move(name), std::move(layer));
  return *this;
}

Tensor Chain::forward(const Pass& pass, const Tensor& input, Context& context) {
  context.inner.resize(layers_.size());
  Tensor value = input;
  for (size_t i = 0; i < layers_.size(); ++i) {
    context.inner[i].output_gradient = {};
    value = layers_[i].second->forward(pass, value, context.inner[i]);
  }
  return value;
}

Tensor Chain::backward(const Pass& pass, Context& context, const Tensor& output_gradient,
                       Wanted wanted) {
  if (layers_.empty()) return wanted.input ? output_gradient : Tensor();
  // A context keeps its layer's output gradient from the pass for the input to the pass for the
  // weights.
  const bool is_late = wanted.weights && !wanted.input && context.inner.back().output_gradient;
  Tensor gradient = output_gradient;
  for (size_t i = layers_.size(); i-- > 0;) {
    auto& layer = *layers_[i].second;
    auto& inner = context.inner[i];
    if (is_late) {
      layer.backward(pass, inner, std::exchange(inner.output_gradient, {}), wanted);
      continue;
    }
    if (!wanted.weights) inner.output_gradient = gradient;
    gradient = layer.backward(pass, inner, gradient, {wanted.input || i > 0, wanted.weights});
  }
  return is_late ? Tensor() : gradient;
}

void Chain::initialize(uint64_t seed) {
  for (auto& [name, layer] : layers_) layer->initialize(seed);
}

std::vector<Parameter*> Chain::parameters() {
  std::vector<Parameter*> all;
  for (auto& [name, layer] : layers_)
    for (auto* parameter : layer->parameters()) all.push_back(parameter);
  return all;
}

std::vector<NamedState*> Chain::buffers() {
  std::vector<NamedState*> all;
  for (auto& [name, layer] : layers_)
    for (auto* buffer : layer->buffers()) all.push_back(buffer);
  return all;
}

void Chain::attach(const std::string& path) {
  for (auto& [name, layer] : layers_) layer->attach(path.empty() ? name : path + "." + name);
}

}  // namespace tutti::nn
