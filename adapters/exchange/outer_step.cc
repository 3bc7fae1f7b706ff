#include "tutti/adapters/exchange/outer_step.h"

#include <cstring>

namespace tutti {

namespace {

// Calls `body` with a zero of the tensors' element type.
template <class Body>
void with_type(const TensorView& tensor, const Body& body) {
  if (tensor.dtype() == DataType::f64)
    body(double{});
  else
    body(float{});
}

}  // namespace

void take_change(const TensorView& shared, const TensorView& value, const TensorView& change) {
  with_type(shared, [&]<class T>(T) {
    const T *w0 = shared.as<T>(), *w = value.as<T>();
    T* d = change.as<T>();
    for (int64_t i = 0; i < shared.count(); ++i) d[i] = w0[i] - w[i];
  });
}

void apply_change(const TensorView& shared, const TensorView& change) {
  with_type(shared, [&]<class T>(T) {
    T* w0 = shared.as<T>();
    const T* d = change.as<T>();
    for (int64_t i = 0; i < shared.count(); ++i) w0[i] -= d[i];
  });
}

void outer_sgd(const OuterStep& outer, const TensorView& shared, const TensorView& change,
               const TensorView& velocity) {
  with_type(shared, [&]<class T>(T) {
    T* w0 = shared.as<T>();
    const T* d = change.as<T>();
    const auto rate = static_cast<T>(outer.rate), momentum = static_cast<T>(outer.momentum);
    if (outer.momentum == 0) {
      for (int64_t i = 0; i < shared.count(); ++i) w0[i] -= rate * d[i];
      return;
    }
    T* v = velocity.as<T>();
    for (int64_t i = 0; i < shared.count(); ++i) {
      v[i] = momentum * v[i] + d[i];
      w0[i] -= rate * (outer.nesterov ? d[i] + momentum * v[i] : v[i]);
    }
  });
}

void slow_momentum(const OuterStep& outer, double gamma, const TensorView& shared,
                   const TensorView& change, const TensorView& momentum) {
  with_type(shared, [&]<class T>(T) {
    T *w0 = shared.as<T>(), *u = momentum.as<T>();
    const T* d = change.as<T>();
    const auto alpha = static_cast<T>(outer.rate), beta = static_cast<T>(outer.momentum);
    const auto rate = static_cast<T>(gamma);
    for (int64_t i = 0; i < shared.count(); ++i) {
      if (rate > 0) {
        u[i] = beta * u[i] + d[i] / rate;
        w0[i] -= alpha * rate * u[i];
      } else {
        u[i] = beta * u[i];
        w0[i] -= alpha * d[i];
      }
    }
  });
}

void pull_to_mean(double pull, const TensorView& value, const TensorView& mean) {
  with_type(value, [&]<class T>(T) {
    T* w = value.as<T>();
    const T* m = mean.as<T>();
    const auto share = static_cast<T>(pull);
    for (int64_t i = 0; i < value.count(); ++i) w[i] += share * (m[i] - w[i]);
  });
}

void take_shared(double kept, const TensorView& value, const TensorView& shared) {
  if (kept == 0) {
    std::memcpy(value.data(), shared.data(), static_cast<size_t>(value.bytes()));
    return;
  }
  with_type(value, [&]<class T>(T) {
    T* w = value.as<T>();
    const T* w0 = shared.as<T>();
    const auto share = static_cast<T>(kept);
    for (int64_t i = 0; i < value.count(); ++i) w[i] = w0[i] + share * (w[i] - w0[i]);
  });
}

}  // namespace tutti
