#include "tutti/adapters/nn/sequential.h"

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/layers/loss.h"
#include "tutti/tensor/absent_memory.h"

namespace tutti::nn {

Sequential::Sequential(uint64_t seed, int threads, Device device)
    : seed_(seed),
      kernels_(make_layer_kernels(device, threads)),
      layers_(std::make_unique<Chain>()) {}

Sequential::~Sequential() = default;
Sequential::Sequential(Sequential&&) noexcept = default;

Device Sequential::device() const { return kernels_->device(); }
StreamRef Sequential::stream() const { return kernels_->stream(); }
Tensor Sequential::to_device(const Tensor& host) { return kernels_->upload(host); }

Sequential& Sequential::add(std::string name, std::unique_ptr<Layer> layer) {
  layers_->add(name, std::move(layer));
  layers_->last().attach(name);
  layers_->last().initialize(seed_);
  // Initial values are drawn on the host, so they are the same for every device.
  for (auto* parameter : layers_->last().parameters()) {
    if (parameter->value.device() == device()) continue;
    parameter->value = kernels_->upload(parameter->value);
    parameter->gradient = kernels_->upload(parameter->gradient);
  }
  for (auto* buffer : layers_->last().buffers()) buffer->tensor = kernels_->upload(buffer->tensor);
  return *this;
}

Tensor Sequential::forward(const Tensor& input, Context& context) {
  const bool is_elsewhere = input.device() != device() && input.device() == Device{};
  return layers_->forward(pass(), is_elsewhere ? kernels_->upload(input) : input, context);
}

Tensor Sequential::backward(Context& context, const Tensor& output_gradient, Wanted wanted) {
  return layers_->backward(pass(), context, output_gradient, wanted);
}

void Sequential::backward(const Loss& loss) { backward(loss.gradient(*kernels_)); }

void Sequential::backward(const Loss& loss, double divisor) {
  backward(loss.gradient(*kernels_, divisor));
}

void Sequential::zero_grad() {
  for (auto* parameter : layers_->parameters()) kernels_->fill_zero(parameter->gradient);
}

int64_t Sequential::parameter_count() const {
  int64_t count = 0;
  for (const auto* parameter : layers_->parameters()) count += parameter->value.count();
  return count;
}

std::vector<Parameter> Sequential::parameters() const {
  std::vector<Parameter> all;
  for (const auto* parameter : layers_->parameters()) {
    require_present(parameter->name, parameter->value);
    all.push_back(*parameter);
  }
  return all;
}

std::vector<NamedState> Sequential::buffers() const {
  std::vector<NamedState> all;
  for (const auto* buffer : layers_->buffers()) all.push_back(*buffer);
  return all;
}

}  // namespace tutti::nn
