#pragma once

#include <string>
#include <vector>

#include "tutti/adapters/nn/layers/layer.h"
#include "tutti/kernels/layers/layer_kernels.h"

namespace tutti::nn {

/// A parameter of a layer: f32, zero, with a gradient and nobody listening.
Parameter make_parameter(std::string name, const Shape& shape);

/// Random numbers keyed by the seed, the parameter's name and the element: uniform in
/// (-bound, bound).
void fill_uniform(const Parameter& parameter, double bound, uint64_t seed);
/// The same, normal with this deviation.
void fill_normal(const Parameter& parameter, double deviation, uint64_t seed);

/// A layer with a weight, whose fan-in is the weight's row, and a bias unless it has none.
class Weighted : public Layer {
 public:
  /// `deviation`: of normal weights at first; 0: as He et al. 2015 for layers before a rectifier,
  /// uniform with bound sqrt(6 / fan_in). Biases begin with zero.
  Weighted(const Shape& weight, int64_t outputs, bool has_bias, double deviation = 0);
  void initialize(uint64_t seed) override;
  std::vector<Parameter*> parameters() override;

 protected:
  Parameter weight_, bias_;  // no elements in the bias if there is none
  const bool has_bias_;
  const double deviation_;
};

}  // namespace tutti::nn
