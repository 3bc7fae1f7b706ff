#include "tutti/adapters/nn/sharded.h"

#include "tutti/tensor/absent_memory.h"

namespace tutti::nn {

namespace {

class GatheredLayer : public Layer {
 public:
  GatheredLayer(std::unique_ptr<Layer> layer, std::shared_ptr<Gatherer> gatherer)
      : layer_(std::move(layer)), gatherer_(std::move(gatherer)) {}
  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override {
    for_each(gatherer_->need);
    auto output = layer_->forward(pass, input, context);
    for_each(gatherer_->done);
    return output;
  }
  Tensor backward(const Pass& pass, Context& context, const Tensor& output_gradient,
                  Wanted wanted) override {
    for_each(gatherer_->need);
    auto gradient = layer_->backward(pass, context, output_gradient, wanted);
    for_each(gatherer_->done);
    return gradient;
  }
  void initialize(uint64_t seed) override { layer_->initialize(seed); }
  void attach(const std::string& path) override { layer_->attach(path); }
  std::vector<Parameter*> parameters() override { return layer_->parameters(); }
  std::vector<NamedState*> buffers() override { return layer_->buffers(); }
  std::vector<const Parameter*> borrowed() override { return layer_->borrowed(); }
  std::string kind() const override { return layer_->kind(); }

 private:
  void for_each(const std::function<void(std::string_view)>& call) {
    if (!call) return;
    for (const auto* parameter : layer_->parameters()) call(parameter->name);
    for (const auto* parameter : layer_->borrowed()) call(parameter->name);
  }

  const std::unique_ptr<Layer> layer_;
  const std::shared_ptr<Gatherer> gatherer_;
};

}  // namespace

std::unique_ptr<Layer> gathered(std::unique_ptr<Layer> layer, std::shared_ptr<Gatherer> gatherer) {
  return std::make_unique<GatheredLayer>(std::move(layer), std::move(gatherer));
}

void require_whole(const std::vector<Parameter>& parameters) {
  for (const auto& parameter : parameters) require_present(parameter.name, parameter.value);
}

}  // namespace tutti::nn
