#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/nn/reference/layer_reference.h"
#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/kernels/convert.h"
#include "tutti/tensor/tensor.h"

namespace tutti::test {

using reference::Values;

inline constexpr DataType kLayerTypes[] = {DataType::f32, DataType::bf16, DataType::f16};

/// Makes the layers that a suite tests: the CPU's, unless a source of the program replaces this
/// function.
inline std::function<std::unique_ptr<LayerKernels>()> layers_under_test = [] {
  return make_layer_kernels();
};

/// Makes a tensor of these values, rounded to its type.
inline Tensor tensor_of(const Shape& shape, const Values& values, DataType dtype = DataType::f32) {
  Tensor tensor(shape, dtype);
  EXPECT_EQ(static_cast<size_t>(tensor.count()), values.size());
  cast(DataType::f64, reinterpret_cast<const std::byte*>(values.data()), dtype, tensor.data(),
       tensor.count());
  return tensor;
}

inline Values values_of(const Tensor& tensor) {
  Values values(static_cast<size_t>(tensor.count()));
  cast(tensor.dtype(), tensor.data(), DataType::f64, reinterpret_cast<std::byte*>(values.data()),
       tensor.count());
  return values;
}

/// Makes normal random numbers, rounded to the type; equal seeds give equal numbers.
inline Tensor noise_tensor(const Shape& shape, unsigned seed, DataType dtype = DataType::f32) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Values values(static_cast<size_t>(shape.count()));
  for (double& value : values) value = normal(random);
  return tensor_of(shape, values, dtype);
}

/// Makes f32 numbers that `dtype` holds exactly: parameters, which a device rounds to a layer's
/// type.
inline Tensor parameter_tensor(const Shape& shape, unsigned seed, DataType dtype) {
  return tensor_of(shape, values_of(noise_tensor(shape, seed, dtype)));
}

/// True if layers round twice, as a device's do. A linear layer rounds its bias, a convolution
/// rounds before it adds the bias, and each batch's weight gradient is rounded to the type of the
/// images.
inline bool layers_round_twice = false;

/// Expects each value within 2e-5 of the reference (absolute plus relative), plus the error of
/// `roundings` roundings to `rounded`.
inline void expect_close(const Tensor& tensor, const Values& expected, const std::string& what,
                         DataType rounded, int roundings = 1) {
  const double bound = 2e-5 + roundings * (rounded == DataType::bf16  ? 0x1p-8
                                           : rounded == DataType::f16 ? 0x1p-11
                                                                      : 0);
  const auto values = values_of(tensor);
  ASSERT_EQ(values.size(), expected.size()) << what;
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(values[i], expected[i], bound * (1 + std::abs(expected[i])))
        << what << " in " << to_string(tensor.dtype()) << " at " << i;
}
inline void expect_close(const Tensor& tensor, const Values& expected, const std::string& what) {
  expect_close(tensor, expected, what, tensor.dtype());
}

/// Expects that the reference's gradient of sum(output_gradient * forward(input)) by the input
/// equals finite differences, to 1e-6.
inline void expect_is_gradient(const Values& gradient, Values input, const Values& output_gradient,
                               const std::function<Values(const Values&)>& forward,
                               const std::string& what) {
  ASSERT_EQ(gradient.size(), input.size()) << what;
  const auto value = [&] {
    const auto output = forward(input);
    EXPECT_EQ(output.size(), output_gradient.size()) << what;
    double sum = 0;
    for (size_t i = 0; i < output.size(); ++i) sum += output[i] * output_gradient[i];
    return sum;
  };
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < input.size(); ++i) {
    const double kept = input[i];
    input[i] = kept + kStep;
    const double up = value();
    input[i] = kept - kStep;
    const double down = value();
    input[i] = kept;
    ASSERT_NEAR(gradient[i], (up - down) / (2 * kStep), 1e-6 * (1 + std::abs(gradient[i])))
        << what << " at " << i;
  }
}

}  // namespace tutti::test
