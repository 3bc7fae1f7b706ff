#pragma once

#include <cmath>

#include "tutti/adapters/nn/kernels/optimizer_steps.h"

namespace tutti {

/// The constants of one step of any optimizer. The CPU's steps (optimizer_steps.cc) and a GPU's
/// (adapters/nn/kernels/cuda/steps/step_tile.h) do the same arithmetic with them.
struct StepFactors {
  float rate = 0, decay = 0, epsilon = 0;
  float kept = 1;                               // factor of the parameter's value
  float momentum = 0, direct = 0, carried = 0;  // SGD, RMSProp
  float keep = 0, rest = 0;                     // RMSProp
  float beta1 = 0, beta2 = 0, rest1 = 0, rest2 = 0, correction = 0;  // Adam
};

/// Nesterov and plain momentum share one formula: rate * (direct * g + carried * v).
inline StepFactors factors_of(const SgdSettings& settings) {
  StepFactors factors;
  factors.rate = settings.learning_rate;
  factors.decay = settings.weight_decay;
  factors.momentum = settings.momentum;
  factors.direct = settings.nesterov ? 1.0f : 0.0f;
  factors.carried = settings.nesterov ? settings.momentum : 1.0f;
  return factors;
}

/// Folds the corrections of both moments into two factors, so that the loop has one division: rate
/// * m/c1 / (sqrt(v/c2) + eps) = (rate/c1) m / (sqrt(v) / sqrt(c2) + eps).
inline StepFactors factors_of(const AdamSettings& settings) {
  const auto t = static_cast<double>(settings.step);
  StepFactors factors;
  factors.rate = static_cast<float>(settings.learning_rate / (1.0 - std::pow(settings.beta1, t)));
  factors.correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(settings.beta2, t)));
  factors.beta1 = static_cast<float>(settings.beta1);
  factors.beta2 = static_cast<float>(settings.beta2);
  factors.rest1 = static_cast<float>(1.0 - settings.beta1);
  factors.rest2 = static_cast<float>(1.0 - settings.beta2);
  factors.epsilon = static_cast<float>(settings.epsilon);
  factors.decay = settings.decoupled ? 0.0f : static_cast<float>(settings.weight_decay);
  factors.kept = settings.decoupled
                     ? static_cast<float>(1.0 - settings.learning_rate * settings.weight_decay)
                     : 1.0f;
  return factors;
}

inline StepFactors factors_of(const RmsPropSettings& settings) {
  StepFactors factors;
  factors.rate = settings.learning_rate;
  factors.decay = settings.weight_decay;
  factors.epsilon = settings.epsilon;
  factors.momentum = settings.momentum;
  factors.keep = settings.decay;
  factors.rest = 1.0f - settings.decay;
  return factors;
}

}  // namespace tutti
