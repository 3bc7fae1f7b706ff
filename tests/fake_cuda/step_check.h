#pragma once

// Optimizer steps on a device compared with the CPU's.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/nn/layer_check.h"
#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/kernels/optimizer_steps.h"
#include "tutti/adapters/nn/kernels/step_kernels.h"
#include "tutti/tensor/tensor.h"

namespace tutti::test {

// Parameters with sizes close to those of vectors and tiles.
struct StepSet {
  std::vector<Tensor> values, gradients, first, second;  // on the host
  std::vector<Tensor> device_values, device_gradients, device_first, device_second;
  std::vector<StepOperands> operands;
  explicit StepSet(LayerKernels& kernels) {
    unsigned seed = 1;
    for (const int64_t count : {1, 3, 4, 1000, 4096, 4097}) {
      for (auto* all : {&values, &gradients, &first, &second})
        all->push_back(noise_tensor(Shape{count}, seed++));
      for (float& square : second.back().span<float>()) square = std::abs(square);
      device_values.push_back(kernels.upload(values.back()));
      device_gradients.push_back(kernels.upload(gradients.back()));
      device_first.push_back(kernels.upload(first.back()));
      device_second.push_back(kernels.upload(second.back()));
      operands.push_back({device_values.back(), device_gradients.back(), device_first.back(),
                          device_second.back()});
    }
  }
};

inline void expect_adam_steps_as_on_the_cpu_to_the_bit(LayerKernels& kernels) {
  StepSet set(kernels);
  const auto steps = make_step_kernels(set.operands);
  AdamSettings settings;
  settings.learning_rate = 0.01;
  settings.weight_decay = 0.1;
  settings.decoupled = true;
  for (settings.step = 1; settings.step < 4; ++settings.step) {
    steps->step(StepKind::adam, factors_of(settings));
    for (size_t i = 0; i < set.values.size(); ++i)
      adam_step(settings, set.values[i].span<float>(), set.gradients[i].span<float>(),
                set.first[i].span<float>(), set.second[i].span<float>());
  }
  for (size_t i = 0; i < set.values.size(); ++i) {
    const auto value = on_host(set.device_values[i]);
    EXPECT_EQ(std::memcmp(value.data(), set.values[i].data(), static_cast<size_t>(value.bytes())),
              0)
        << i << ": " << value.as<float>()[0] << " and " << set.values[i].as<float>()[0];
  }
}

/// Compares approximately, because the device adds up norms in another order. Parameters of all
/// sizes are used with and without adaptation.
inline void expect_lars_and_lamb_step_as_on_the_cpu(LayerKernels& kernels) {
  for (const bool is_lamb : {false, true}) {
    StepSet set(kernels);
    for (size_t i = 0; i < set.operands.size(); ++i) set.operands[i].is_adapted = i % 3 != 1;
    const auto steps = make_step_kernels(set.operands);
    const LarsSettings lars{.learning_rate = 0.1, .weight_decay = 0.1, .trust = 0.02};
    LambSettings lamb{.learning_rate = 0.05, .weight_decay = 0.1};
    for (lamb.step = 1; lamb.step < 4; ++lamb.step) {
      is_lamb ? steps->step(lamb) : steps->step(lars);
      for (size_t i = 0; i < set.values.size(); ++i) {
        const auto value = set.values[i].span<float>(), gradient = set.gradients[i].span<float>(),
                   first = set.first[i].span<float>(), second = set.second[i].span<float>();
        const bool is_adapted = set.operands[i].is_adapted;
        if (is_lamb) {
          std::vector<float> update(value.size());
          lamb_update(lamb, is_adapted, value, gradient, first, second, update);
          lamb_step(lamb, is_adapted, sum_squares(value), sum_squares(update), value, update);
        } else {
          lars_step(lars, is_adapted, sum_squares(value), sum_squares(gradient), value, gradient,
                    first);
        }
      }
    }
    for (size_t i = 0; i < set.values.size(); ++i) {
      expect_close(on_host(set.device_values[i]), values_of(set.values[i]),
                   is_lamb ? "LAMB's value" : "LARS's value");
      expect_close(on_host(set.device_first[i]), values_of(set.first[i]), "first state");
      if (is_lamb)
        expect_close(on_host(set.device_second[i]), values_of(set.second[i]), "second state");
    }
  }
}

}  // namespace tutti::test
