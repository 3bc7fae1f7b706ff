#include "tutti/adapters/nn/sequential.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/adapters/nn/loss.h"
#include "tutti/base/error.h"

namespace tutti::nn {

Sequential::Sequential(uint64_t seed, int threads)
    : generator_(seed), kernels_(std::make_unique<LayerKernels>(threads)) {}

Sequential& Sequential::add(std::string name, std::unique_ptr<Layer> layer) {
  for (const auto& [other, existing] : layers_)
    if (other == name)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("two layers are named \"{}\"; each needs its own name", name));
  layer->initialize(generator_);
  for (auto* parameter : layer->parameters()) parameter->name = name + "." + parameter->name;
  layers_.emplace_back(std::move(name), std::move(layer));
  return *this;
}

Tensor Sequential::forward(const Tensor& input) {
  Tensor value = input;
  for (auto& [name, layer] : layers_) value = layer->forward(*kernels_, value);
  return value;
}

void Sequential::backward(const CrossEntropy& loss) { backward(loss.gradient(*kernels_)); }

void Sequential::backward(const Tensor& output_gradient) {
  Tensor gradient = output_gradient;
  for (size_t i = layers_.size(); i-- > 0;) {
    auto& layer = *layers_[i].second;
    gradient = layer.backward(*kernels_, gradient, i > 0);
    for (const auto* parameter : layer.parameters())
      if (*parameter->ready) (*parameter->ready)(parameter->name);
  }
}

void Sequential::zero_grad() {
  for (auto& [name, layer] : layers_)
    for (auto* parameter : layer->parameters()) {
      const auto gradient = parameter->gradient.span<float>();
      std::fill(gradient.begin(), gradient.end(), 0.0f);
    }
}

std::vector<Parameter> Sequential::parameters() const {
  std::vector<Parameter> all;
  for (const auto& [name, layer] : layers_)
    for (const auto* parameter : layer->parameters()) all.push_back(*parameter);
  return all;
}

}  // namespace tutti::nn
