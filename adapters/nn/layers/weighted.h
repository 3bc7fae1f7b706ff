#pragma once

#include <string>
#include <vector>

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/layers/layers.h"

namespace tutti::nn {

/// Returns an f32 parameter of zeros, with a gradient and without a listener.
Parameter make_parameter(std::string name, const Shape& shape);

/// Fills a parameter with random numbers, uniform in (-bound, bound). They follow from the seed,
/// the parameter's name and the element's index.
void fill_uniform(const Parameter& parameter, double bound, uint64_t seed);
/// Like fill_uniform(), with normal numbers of this standard deviation.
void fill_normal(const Parameter& parameter, double deviation, uint64_t seed);

/// A layer with a weight and an optional bias. The fan-in is the size of a row of the weight.
class Weighted : public Layer {
 public:
  /// `deviation` is the standard deviation of normal initial weights. With 0 they are uniform with
  /// bound sqrt(6 / fan_in), as in He et al. 2015 for layers before a rectifier. Biases begin as
  /// zero.
  Weighted(const Shape& weight, int64_t outputs, bool has_bias, double deviation = 0);
  void initialize(uint64_t seed) override;
  std::vector<Parameter*> parameters() override;

 protected:
  Parameter weight_, bias_;  // the bias is empty if there is none
  const bool has_bias_;
  const double deviation_;
};

}  // namespace tutti::nn
