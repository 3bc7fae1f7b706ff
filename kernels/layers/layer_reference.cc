#include "tutti/kernels/layers/layer_reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tutti {
namespace {

// Calls body(input offset, weight offset, output offset) for every product of a convolution.
template <class Body>
void for_each_conv2d_product(const Conv2dShape& s, Body body) {
  const int64_t output_height = s.output_height(), output_width = s.output_width();
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t o = 0; o < s.output_channels; ++o)
      for (int64_t y = 0; y < output_height; ++y)
        for (int64_t x = 0; x < output_width; ++x)
          for (int64_t i = 0; i < s.input_channels; ++i)
            for (int64_t ky = 0; ky < s.kernel; ++ky)
              for (int64_t kx = 0; kx < s.kernel; ++kx) {
                const int64_t row = y * s.stride + ky - s.padding;
                const int64_t column = x * s.stride + kx - s.padding;
                if (row < 0 || row >= s.height || column < 0 || column >= s.width) continue;
                body(((n * s.input_channels + i) * s.height + row) * s.width + column,
                     ((o * s.input_channels + i) * s.kernel + ky) * s.kernel + kx,
                     ((n * s.output_channels + o) * output_height + y) * output_width + x);
              }
}

// Calls body(window's output offset, offset of the window's first input) for every window.
template <class Body>
void for_each_window(const Pool2dShape& s, Body body) {
  const int64_t output_height = s.output_height(), output_width = s.output_width();
  for (int64_t plane = 0; plane < s.batch * s.channels; ++plane)
    for (int64_t y = 0; y < output_height; ++y)
      for (int64_t x = 0; x < output_width; ++x)
        body((plane * output_height + y) * output_width + x,
             (plane * s.height + y * s.stride) * s.width + x * s.stride);
}

void round_into(const std::vector<double>& sums, float* output) {
  std::transform(sums.begin(), sums.end(), output, [](double x) { return static_cast<float>(x); });
}

int64_t output_count(const Conv2dShape& s) {
  return s.batch * s.output_channels * s.output_height() * s.output_width();
}

}  // namespace

void linear_forward_reference(const LinearShape& s, const float* input, const float* weight,
                              const float* bias, float* output) {
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t o = 0; o < s.outputs; ++o) {
      double sum = bias[o];
      for (int64_t i = 0; i < s.inputs; ++i)
        sum += double{input[n * s.inputs + i]} * weight[o * s.inputs + i];
      output[n * s.outputs + o] = static_cast<float>(sum);
    }
}

void linear_backward_reference(const LinearShape& s, const float* input, const float* weight,
                               const float* output_gradient, float* input_gradient,
                               float* weight_gradient, float* bias_gradient) {
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t i = 0; i < s.inputs; ++i) {
      double sum = 0;
      for (int64_t o = 0; o < s.outputs; ++o)
        sum += double{output_gradient[n * s.outputs + o]} * weight[o * s.inputs + i];
      input_gradient[n * s.inputs + i] = static_cast<float>(sum);
    }
  for (int64_t o = 0; o < s.outputs; ++o) {
    for (int64_t i = 0; i < s.inputs; ++i) {
      double sum = 0;
      for (int64_t n = 0; n < s.batch; ++n)
        sum += double{output_gradient[n * s.outputs + o]} * input[n * s.inputs + i];
      weight_gradient[o * s.inputs + i] = static_cast<float>(sum);
    }
    double sum = 0;
    for (int64_t n = 0; n < s.batch; ++n) sum += output_gradient[n * s.outputs + o];
    bias_gradient[o] = static_cast<float>(sum);
  }
}

void conv2d_forward_reference(const Conv2dShape& s, const float* input, const float* weight,
                              const float* bias, float* output) {
  std::vector<double> sums(static_cast<size_t>(output_count(s)));
  const int64_t plane = s.output_height() * s.output_width();
  size_t k = 0;
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t o = 0; o < s.output_channels; ++o)
      for (int64_t i = 0; i < plane; ++i) sums[k++] = bias[o];
  for_each_conv2d_product(s, [&](int64_t in, int64_t w, int64_t out) {
    sums[static_cast<size_t>(out)] += double{input[in]} * weight[w];
  });
  round_into(sums, output);
}

void conv2d_backward_reference(const Conv2dShape& s, const float* input, const float* weight,
                               const float* output_gradient, float* input_gradient,
                               float* weight_gradient, float* bias_gradient) {
  std::vector<double> inputs(static_cast<size_t>(s.batch * s.input_channels * s.height * s.width));
  std::vector<double> weights(
      static_cast<size_t>(s.output_channels * s.input_channels * s.kernel * s.kernel));
  std::vector<double> biases(static_cast<size_t>(s.output_channels));
  for_each_conv2d_product(s, [&](int64_t in, int64_t w, int64_t out) {
    inputs[static_cast<size_t>(in)] += double{output_gradient[out]} * weight[w];
    weights[static_cast<size_t>(w)] += double{output_gradient[out]} * input[in];
  });
  const int64_t plane = s.output_height() * s.output_width();
  for (int64_t out = 0; out < output_count(s); ++out)
    biases[static_cast<size_t>(out / plane % s.output_channels)] += output_gradient[out];
  round_into(inputs, input_gradient);
  round_into(weights, weight_gradient);
  round_into(biases, bias_gradient);
}

void pool2d_forward_reference(const Pool2dShape& s, const float* input, float* output) {
  for_each_window(s, [&](int64_t out, int64_t in) {
    double sum = 0, maximum = input[in];
    for (int64_t ky = 0; ky < s.kernel; ++ky)
      for (int64_t kx = 0; kx < s.kernel; ++kx) {
        const double value = input[in + ky * s.width + kx];
        sum += value;
        maximum = std::max(maximum, value);
      }
    const auto area = static_cast<double>(s.kernel * s.kernel);
    output[out] = static_cast<float>(s.pooling == Pooling::max ? maximum : sum / area);
  });
}

void pool2d_backward_reference(const Pool2dShape& s, const float* input,
                               const float* output_gradient, float* input_gradient) {
  std::vector<double> sums(static_cast<size_t>(s.batch * s.channels * s.height * s.width));
  for_each_window(s, [&](int64_t out, int64_t in) {
    int64_t best = in;
    for (int64_t ky = 0; ky < s.kernel; ++ky)
      for (int64_t kx = 0; kx < s.kernel; ++kx) {
        const int64_t at = in + ky * s.width + kx;
        if (s.pooling == Pooling::average)
          sums[static_cast<size_t>(at)] +=
              double{output_gradient[out]} / static_cast<double>(s.kernel * s.kernel);
        if (input[at] > input[best]) best = at;
      }
    if (s.pooling == Pooling::max) sums[static_cast<size_t>(best)] += output_gradient[out];
  });
  round_into(sums, input_gradient);
}

void activation_forward_reference(Activation activation, int64_t count, const float* input,
                                  float* output) {
  for (int64_t i = 0; i < count; ++i)
    output[i] = activation == Activation::relu
                    ? std::max(input[i], 0.0f)
                    : static_cast<float>(std::tanh(static_cast<double>(input[i])));
}

void activation_backward_reference(Activation activation, int64_t count, const float* output,
                                   const float* output_gradient, float* input_gradient) {
  for (int64_t i = 0; i < count; ++i) {
    const double y = output[i];
    const double slope = activation == Activation::relu ? (y > 0 ? 1.0 : 0.0) : 1.0 - y * y;
    input_gradient[i] = static_cast<float>(slope * output_gradient[i]);
  }
}

double softmax_cross_entropy_forward_reference(int64_t batch, int64_t classes, const float* logits,
                                               const int64_t* labels, float* log_probabilities) {
  double loss = 0;
  for (int64_t n = 0; n < batch; ++n) {
    const float* row = logits + n * classes;
    const double maximum = *std::max_element(row, row + classes);
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(row[c] - maximum);
    for (int64_t c = 0; c < classes; ++c)
      log_probabilities[n * classes + c] = static_cast<float>(row[c] - maximum - std::log(sum));
    loss -= row[labels[n]] - maximum - std::log(sum);
  }
  return loss / static_cast<double>(batch);
}

void softmax_cross_entropy_backward_reference(int64_t batch, int64_t classes,
                                              const float* log_probabilities, const int64_t* labels,
                                              float* logit_gradient) {
  for (int64_t n = 0; n < batch; ++n)
    for (int64_t c = 0; c < classes; ++c) {
      const int64_t at = n * classes + c;
      const double probability = std::exp(static_cast<double>(log_probabilities[at]));
      logit_gradient[at] = static_cast<float>((probability - (c == labels[n] ? 1.0 : 0.0)) /
                                              static_cast<double>(batch));
    }
}

}  // namespace tutti
