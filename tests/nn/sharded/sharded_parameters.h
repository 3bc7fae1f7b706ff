#pragma once

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tutti/adapters/nn/layers/parameter.h"
#include "tutti/core/communicator.h"

// The parameters that stand for a model in the tests of sharded optimizers.

namespace tutti::nn {

inline const std::vector<std::pair<std::string, Shape>> kParameters = {
    {"first.weight", {7, 3}}, {"first.bias", {1}}, {"second.weight", {30'011}}, {"bias", {2}}};

inline std::vector<Parameter> made(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Parameter> all;
  for (const auto& [name, shape] : kParameters) {
    all.push_back({name, Tensor(shape, DataType::f32), Tensor(shape, DataType::f32),
                   std::make_shared<GradientReady>()});
    for (float& value : all.back().value.span<float>()) value = normal(random);
  }
  return all;
}

inline void in_rank_order(Options& options) { options.determinism = Determinism::rank_order; }

}  // namespace tutti::nn
