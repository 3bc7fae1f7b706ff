#include "tests/nn/reference/layer_reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tutti::reference {
namespace {

size_t index(int64_t i) { return static_cast<size_t>(i); }
Values zeros_of(int64_t count) { return Values(index(count)); }

// Calls body(input offset, weight offset, output offset) for every product of a convolution.
template <class Body>
void for_each_product(const ConvolutionShape& s, Body body) {
  const auto windows = s.output();
  const auto [depth, height, width] = s.image;
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t o = 0; o < s.output_channels; ++o)
      for (int64_t z = 0; z < windows[0]; ++z)
        for (int64_t y = 0; y < windows[1]; ++y)
          for (int64_t x = 0; x < windows[2]; ++x)
            for (int64_t i = 0; i < s.input_channels; ++i)
              for (int64_t kz = 0; kz < s.kernel[0]; ++kz)
                for (int64_t ky = 0; ky < s.kernel[1]; ++ky)
                  for (int64_t kx = 0; kx < s.kernel[2]; ++kx) {
                    const int64_t plane = z * s.stride[0] + kz - s.padding[0];
                    const int64_t row = y * s.stride[1] + ky - s.padding[1];
                    const int64_t column = x * s.stride[2] + kx - s.padding[2];
                    if (plane < 0 || plane >= depth || row < 0 || row >= height || column < 0 ||
                        column >= width)
                      continue;
                    body((((n * s.input_channels + i) * depth + plane) * height + row) * width +
                             column,
                         (((o * s.input_channels + i) * s.kernel[0] + kz) * s.kernel[1] + ky) *
                                 s.kernel[2] +
                             kx,
                         (((n * s.output_channels + o) * windows[0] + z) * windows[1] + y) *
                                 windows[2] +
                             x);
                  }
}

int64_t window_positions(const ConvolutionShape& s) {
  const auto windows = s.output();
  return windows[0] * windows[1] * windows[2];
}

// Calls body(output offset, input offsets in row order) for every window.
template <class Body>
void for_each_window(const PoolingShape& s, Body body) {
  const auto& o = s.options;
  std::vector<int64_t> inside;
  int64_t output = 0;
  for (int64_t plane = 0; plane < s.batch * s.channels; ++plane)
    for (int64_t y = 0; y < s.output_height(); ++y)
      for (int64_t x = 0; x < s.output_width(); ++x) {
        inside.clear();
        for (int64_t row = y * o.stride - o.padding; row < y * o.stride - o.padding + o.kernel;
             ++row)
          for (int64_t column = x * o.stride - o.padding;
               column < x * o.stride - o.padding + o.kernel; ++column)
            if (row >= 0 && row < s.height && column >= 0 && column < s.width)
              inside.push_back((plane * s.height + row) * s.width + column);
        body(output++, inside);
      }
}

int64_t largest(const Values& input, const std::vector<int64_t>& inside) {
  return *std::max_element(inside.begin(), inside.end(),
                           [&](int64_t a, int64_t b) { return input[index(a)] < input[index(b)]; });
}

const double kGelu = std::sqrt(2 / std::numbers::pi);
double gelu_argument(double x) { return kGelu * (x + 0.044715 * x * x * x); }

}  // namespace

Values linear_forward(const LinearShape& s, const Values& input, const Values& weight,
                      const Values& bias) {
  auto output = zeros_of(s.rows * s.outputs);
  for (int64_t n = 0; n < s.rows; ++n)
    for (int64_t o = 0; o < s.outputs; ++o) {
      double sum = bias.empty() ? 0 : bias[index(o)];
      for (int64_t i = 0; i < s.inputs; ++i)
        sum += input[index(n * s.inputs + i)] * weight[index(o * s.inputs + i)];
      output[index(n * s.outputs + o)] = sum;
    }
  return output;
}

WeightedGradients linear_backward(const LinearShape& s, const Values& input, const Values& weight,
                                  const Values& output_gradient) {
  WeightedGradients d{zeros_of(s.rows * s.inputs), zeros_of(s.outputs * s.inputs),
                      zeros_of(s.outputs)};
  for (int64_t n = 0; n < s.rows; ++n)
    for (int64_t o = 0; o < s.outputs; ++o) {
      const double gradient = output_gradient[index(n * s.outputs + o)];
      d.bias[index(o)] += gradient;
      for (int64_t i = 0; i < s.inputs; ++i) {
        d.input[index(n * s.inputs + i)] += gradient * weight[index(o * s.inputs + i)];
        d.weight[index(o * s.inputs + i)] += gradient * input[index(n * s.inputs + i)];
      }
    }
  return d;
}

Values convolution_forward(const ConvolutionShape& s, const Values& input, const Values& weight,
                           const Values& bias) {
  const int64_t positions = window_positions(s);
  auto output = zeros_of(s.batch * s.output_channels * positions);
  if (!bias.empty())
    for (size_t i = 0; i < output.size(); ++i)
      output[i] = bias[i / index(positions) % index(s.output_channels)];
  for_each_product(s, [&](int64_t in, int64_t w, int64_t out) {
    output[index(out)] += input[index(in)] * weight[index(w)];
  });
  return output;
}

WeightedGradients convolution_backward(const ConvolutionShape& s, const Values& input,
                                       const Values& weight, const Values& output_gradient) {
  WeightedGradients d{Values(input.size()), Values(weight.size()), zeros_of(s.output_channels)};
  for_each_product(s, [&](int64_t in, int64_t w, int64_t out) {
    d.input[index(in)] += output_gradient[index(out)] * weight[index(w)];
    d.weight[index(w)] += output_gradient[index(out)] * input[index(in)];
  });
  const auto positions = index(window_positions(s));
  for (size_t i = 0; i < output_gradient.size(); ++i)
    d.bias[i / positions % index(s.output_channels)] += output_gradient[i];
  return d;
}

Values pooling_forward(const PoolingShape& s, const Values& input) {
  auto output = zeros_of(s.batch * s.channels * s.output_height() * s.output_width());
  for_each_window(s, [&](int64_t out, const std::vector<int64_t>& inside) {
    double sum = 0;
    for (const int64_t in : inside) sum += input[index(in)];
    output[index(out)] = s.options.pooling == Pooling::max
                             ? input[index(largest(input, inside))]
                             : sum / static_cast<double>(inside.size());
  });
  return output;
}

Values pooling_backward(const PoolingShape& s, const Values& input, const Values& output_gradient) {
  Values input_gradient(input.size());
  for_each_window(s, [&](int64_t out, const std::vector<int64_t>& inside) {
    const double gradient = output_gradient[index(out)];
    if (s.options.pooling == Pooling::max) {
      input_gradient[index(largest(input, inside))] += gradient;
    } else {
      for (const int64_t in : inside)
        input_gradient[index(in)] += gradient / static_cast<double>(inside.size());
    }
  });
  return input_gradient;
}

Values activation_forward(Activation activation, const Values& input) {
  Values output(input.size());
  for (size_t i = 0; i < input.size(); ++i) {
    const double x = input[i];
    if (activation == Activation::relu) output[i] = std::max(x, 0.0);
    if (activation == Activation::tanh) output[i] = std::tanh(x);
    if (activation == Activation::gelu) output[i] = 0.5 * x * (1 + std::tanh(gelu_argument(x)));
  }
  return output;
}

Values activation_backward(Activation activation, const Values& input,
                           const Values& output_gradient) {
  Values input_gradient(input.size());
  for (size_t i = 0; i < input.size(); ++i) {
    const double x = input[i];
    double slope = 0;
    if (activation == Activation::relu) slope = x > 0 ? 1 : 0;
    if (activation == Activation::tanh) slope = 1 - std::tanh(x) * std::tanh(x);
    if (activation == Activation::gelu) {
      const double t = std::tanh(gelu_argument(x));
      slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGelu * (1 + 3 * 0.044715 * x * x);
    }
    input_gradient[i] = slope * output_gradient[i];
  }
  return input_gradient;
}

CrossEntropyResult softmax_cross_entropy_forward(int64_t classes, const Values& logits,
                                                 const std::vector<int64_t>& labels) {
  CrossEntropyResult result{Values(logits.size()), Values(labels.size())};
  for (size_t n = 0; n < labels.size(); ++n) {
    const size_t row = n * index(classes);
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row);
    const double maximum = *std::max_element(first, first + classes);
    double sum = 0;
    for (size_t c = 0; c < index(classes); ++c) sum += std::exp(logits[row + c] - maximum);
    for (size_t c = 0; c < index(classes); ++c)
      result.log_probabilities[row + c] = logits[row + c] - maximum - std::log(sum);
    result.losses[n] = -result.log_probabilities[row + index(labels[n])];
  }
  return result;
}

Values softmax_cross_entropy_backward(int64_t classes, const Values& log_probabilities,
                                      const std::vector<int64_t>& labels, double scale) {
  Values gradient(log_probabilities.size());
  for (size_t i = 0; i < gradient.size(); ++i) {
    const bool is_label = i % index(classes) == index(labels[i / index(classes)]);
    gradient[i] = (std::exp(log_probabilities[i]) - (is_label ? 1.0 : 0.0)) * scale;
  }
  return gradient;
}

}  // namespace tutti::reference
