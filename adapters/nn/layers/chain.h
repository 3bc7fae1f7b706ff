#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/adapters/nn/layers/layer.h"

namespace tutti::nn {

/// Layers one after another, each under a name that is unique in the chain. An empty chain returns
/// its input.
class Chain : public Layer {
 public:
  /// Throws Error(invalid_argument) for a name given twice.
  Chain& add(std::string name, std::unique_ptr<Layer> layer);
  Layer& last() { return *layers_.back().second; }

  Tensor forward(const Pass& pass, const Tensor& input, Context& context) override;
  Tensor backward(const Pass& pass, Context& context, const Tensor& output_gradient,
                  Wanted wanted) override;
  void initialize(uint64_t seed) override;
  std::vector<Parameter*> parameters() override;
  std::vector<NamedState*> buffers() override;
  std::string kind() const override { return "chain"; }
  void attach(const std::string& path) override;

 private:
  std::vector<std::pair<std::string, std::unique_ptr<Layer>>> layers_;
};

}  // namespace tutti::nn
