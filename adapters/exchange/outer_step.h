#pragma once

#include "tutti/adapters/exchange/policy.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// The arithmetic of the exchanges on one tensor, f32 or f64 in host memory, computed in its own
/// dtype. All tensors of one call have the same length.

/// change = shared - value, the opposite of what the inner steps added.
void take_change(const TensorView& shared, const TensorView& value, const TensorView& change);

/// shared -= change.
void apply_change(const TensorView& shared, const TensorView& change);

/// Takes a step of SGD with the change as the gradient and the velocity as in nn::Sgd: v = mu v +
/// d; shared -= rate * (nesterov ? d + mu v : v). Without momentum `velocity` is not touched.
void outer_sgd(const OuterStep& outer, const TensorView& shared, const TensorView& change,
               const TensorView& velocity);

/// SlowMo (Wang et al. 2019): u = beta u + change / gamma; shared -= alpha gamma u, where gamma is
/// the inner learning rate. At gamma 0, where there is no quotient, u = beta u and
/// shared -= alpha * change.
void slow_momentum(const OuterStep& outer, double gamma, const TensorView& shared,
                   const TensorView& change, const TensorView& momentum);

/// EASGD in its synchronous form: value += pull * (mean - value).
void pull_to_mean(double pull, const TensorView& value, const TensorView& mean);

/// value = shared + kept * (value - shared). With kept = 0 this copies `shared` bit for bit.
void take_shared(double kept, const TensorView& value, const TensorView& shared);

}  // namespace tutti
