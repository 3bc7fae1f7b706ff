#include "tutti/adapters/nn/layers/weighted.h"

#include <cmath>

namespace tutti::nn {

Parameter make_parameter(std::string name, const Shape& shape) {
  return {std::move(name), Tensor(shape, DataType::f32), Tensor(shape, DataType::f32),
          std::make_shared<GradientReady>()};
}

namespace {

RandomKey key_of(const Parameter& parameter, uint64_t seed) {
  return {.seed = seed, .purpose = random_purpose("initialize " + parameter.name)};
}

}  // namespace

void fill_uniform(const Parameter& parameter, double bound, uint64_t seed) {
  const auto values = parameter.value.span<float>();
  fill_random_units(key_of(parameter, seed), 0, values);
  for (float& value : values) value = static_cast<float>((2 * double{value} - 1) * bound);
}

void fill_normal(const Parameter& parameter, double deviation, uint64_t seed) {
  const auto values = parameter.value.span<float>();
  fill_random_normals(key_of(parameter, seed), 0, values);
  for (float& value : values) value = static_cast<float>(double{value} * deviation);
}

Weighted::Weighted(const Shape& weight, int64_t outputs, bool has_bias, double deviation)
    : weight_(make_parameter("weight", weight)),
      bias_(make_parameter("bias", Shape{has_bias ? outputs : 0})),
      has_bias_(has_bias),
      deviation_(deviation) {}

void Weighted::initialize(uint64_t seed) {
  if (deviation_ > 0) return fill_normal(weight_, deviation_, seed);
  const auto fan_in = static_cast<double>(weight_.value.shape().row_count());
  fill_uniform(weight_, std::sqrt(6.0 / fan_in), seed);
}

std::vector<Parameter*> Weighted::parameters() {
  if (!has_bias_) return {&weight_};
  return {&weight_, &bias_};
}

}  // namespace tutti::nn
