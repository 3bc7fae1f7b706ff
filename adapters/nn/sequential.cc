#include "tutti/adapters/nn/sequential.h"

#include <algorithm>

#include "tutti/adapters/nn/loss.h"

namespace tutti::nn {

Sequential::Sequential(uint64_t seed, int threads)
    : seed_(seed), kernels_(make_layer_kernels({}, threads)), layers_(std::make_unique<Chain>()) {}

Sequential& Sequential::add(std::string name, std::unique_ptr<Layer> layer) {
  layers_->add(name, std::move(layer));
  layers_->last().attach(name);
  layers_->last().initialize(seed_);
  return *this;
}

Tensor Sequential::forward(const Tensor& input, Context& context) {
  return layers_->forward(pass(), input, context);
}

Tensor Sequential::backward(Context& context, const Tensor& output_gradient, Wanted wanted) {
  return layers_->backward(pass(), context, output_gradient, wanted);
}

void Sequential::backward(const Loss& loss) { backward(loss.gradient(*kernels_)); }

void Sequential::backward(const Loss& loss, double divisor) {
  backward(loss.gradient(*kernels_, divisor));
}

void Sequential::zero_grad() {
  for (auto* parameter : layers_->parameters()) {
    const auto gradient = parameter->gradient.span<float>();
    std::fill(gradient.begin(), gradient.end(), 0.0f);
  }
}

std::vector<Parameter> Sequential::parameters() const {
  std::vector<Parameter> all;
  for (const auto* parameter : layers_->parameters()) all.push_back(*parameter);
  return all;
}

std::vector<NamedState> Sequential::buffers() const {
  std::vector<NamedState> all;
  for (const auto* buffer : layers_->buffers()) all.push_back(*buffer);
  return all;
}

}  // namespace tutti::nn
