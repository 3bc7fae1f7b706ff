#include "tutti/adapters/nn/kernels/cpu/cpu_layer_kernels.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/adapters/nn/kernels/cpu/f32_operands.h"
#include "tutti/adapters/nn/kernels/cpu/primitive_cache.h"
#include "tutti/adapters/nn/kernels/cpu/row_loops.h"
#include "tutti/adapters/nn/kernels/cpu/tensor_pool.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using dnnl::algorithm;
using dnnl::prop_kind;
using Tag = dnnl::memory::format_tag;
using Entry = PrimitiveCache::Entry;

struct LinearDescs {
  dnnl::memory::desc input, weight, bias, output;
  dnnl::inner_product_forward::primitive_desc forward;
  LinearDescs(const LinearShape& s, bool has_bias, const dnnl::engine& engine)
      : input(dense({s.rows, s.inputs}, Tag::ab)),
        weight(dense({s.outputs, s.inputs}, Tag::ab)),
        bias(has_bias ? dense({s.outputs}, Tag::a) : dnnl::memory::desc()),
        output(dense({s.rows, s.outputs}, Tag::ab)),
        forward({prop_kind::forward_training, input, weight, bias, output}, engine) {}
};

PrimitiveCache::Key linear_key(PrimitiveKind kind, const LinearShape& s, bool has_bias) {
  return {kind, {s.rows, s.inputs, s.outputs, has_bias}};
}

algorithm algorithm_of(Activation activation) {
  switch (activation) {
    case Activation::relu:
      return algorithm::eltwise_relu_use_dst_for_bwd;
    case Activation::tanh:
      return algorithm::eltwise_tanh_use_dst_for_bwd;
    case Activation::gelu:
      return algorithm::eltwise_gelu_tanh;
  }
  return algorithm::undef;
}

dnnl::eltwise_forward::primitive_desc activation_forward_desc(Activation activation,
                                                              const dnnl::memory::desc& desc,
                                                              const dnnl::engine& engine) {
  return {{prop_kind::forward_training, algorithm_of(activation), desc, 0.0f, 0.0f}, engine};
}

}  // namespace

CpuLayerKernels::CpuLayerKernels(int threads)
    : cache_(std::make_unique<PrimitiveCache>(threads)), pool_(std::make_shared<TensorPool>()) {}
CpuLayerKernels::~CpuLayerKernels() = default;

Tensor CpuLayerKernels::make_tensor(const Shape& shape, DataType dtype, StreamRef) {
  return pool_->make(shape, dtype);
}

float* CpuLayerKernels::scratch(int64_t weights, int64_t biases) {
  const auto count = static_cast<size_t>(weights + biases);
  if (scratch_.size() < count) scratch_.resize(count);
  return scratch_.data();
}

void CpuLayerKernels::linear_forward(const ConstTensorView& input, const ConstTensorView& weight,
                                     const ConstTensorView& bias, const TensorView& output) {
  const auto s = linear_shape(input.view().shape(), weight.view().shape());
  require_shape("linear", "output", output,
                linear_output(input.view().shape(), weight.view().shape()));
  const bool has_bias = bias.view().count() > 0;
  if (has_bias) require_shape("linear", "bias", bias.view(), Shape{s.outputs});
  if (s.rows == 0) return;
  auto& entry = cache_->entry(
      linear_key(PrimitiveKind::linear_forward, s, has_bias), [&](const dnnl::engine& engine) {
        const LinearDescs d(s, has_bias, engine);
        auto all = cache_->arguments(
            {{DNNL_ARG_SRC, d.input}, {DNNL_ARG_WEIGHTS, d.weight}, {DNNL_ARG_DST, d.output}});
        if (has_bias) all.merge(cache_->arguments({{DNNL_ARG_BIAS, d.bias}}));
        return Entry{dnnl::inner_product_forward(d.forward), std::move(all)};
      });
  F32Operands f32("linear");
  cache_->run(entry, {{DNNL_ARG_SRC, f32.read(input)},
                      {DNNL_ARG_WEIGHTS, f32.read(weight)},
                      {DNNL_ARG_BIAS, has_bias ? f32.read(bias) : nullptr},
                      {DNNL_ARG_DST, f32.write(output)}});
  f32.finish();
}

void CpuLayerKernels::linear_backward_input(const ConstTensorView& weight,
                                            const ConstTensorView& output_gradient,
                                            const TensorView& input_gradient) {
  const auto s = linear_shape(input_gradient.shape(), weight.view().shape());
  require_shape("linear", "gradient of the output", output_gradient.view(),
                linear_output(input_gradient.shape(), weight.view().shape()));
  if (s.rows == 0) return;
  auto& entry = cache_->entry(
      linear_key(PrimitiveKind::linear_backward_input, s, false), [&](const dnnl::engine& engine) {
        const LinearDescs d(s, false, engine);
        return Entry{
            dnnl::inner_product_backward_data({{d.input, d.weight, d.output}, engine, d.forward}),
            cache_->arguments({{DNNL_ARG_DIFF_DST, d.output},
                               {DNNL_ARG_WEIGHTS, d.weight},
                               {DNNL_ARG_DIFF_SRC, d.input}})};
      });
  F32Operands f32("linear");
  cache_->run(entry, {{DNNL_ARG_DIFF_DST, f32.read(output_gradient)},
                      {DNNL_ARG_WEIGHTS, f32.read(weight)},
                      {DNNL_ARG_DIFF_SRC, f32.write(input_gradient)}});
  f32.finish();
}

void CpuLayerKernels::linear_backward_weights(const ConstTensorView& input,
                                              const ConstTensorView& output_gradient,
                                              const TensorView& weight_gradient,
                                              const TensorView& bias_gradient) {
  const auto s = linear_shape(input.view().shape(), weight_gradient.shape());
  require_shape("linear", "gradient of the output", output_gradient.view(),
                linear_output(input.view().shape(), weight_gradient.shape()));
  const bool has_bias = bias_gradient.count() > 0;
  if (has_bias) require_shape("linear", "gradient of the bias", bias_gradient, Shape{s.outputs});
  if (s.rows == 0) return;
  F32Operands f32("linear");
  const float *x = f32.read(input), *dy = f32.read(output_gradient);
  // This product adds to the existing gradient.
  cache_->multiply('T', 'N', s.outputs, s.inputs, s.rows, 1, dy, s.outputs, x, s.inputs, 1,
                   f32.exactly(weight_gradient), s.inputs);
  if (!has_bias) return;
  std::vector<double> sums(static_cast<size_t>(s.outputs));
  for (int64_t n = 0; n < s.rows; ++n) add_row(dy + n * s.outputs, sums.data(), s.outputs);
  float* db = f32.exactly(bias_gradient);
  for (size_t i = 0; i < sums.size(); ++i) db[i] += static_cast<float>(sums[i]);
}

void CpuLayerKernels::activation_forward(Activation activation, const ConstTensorView& input,
                                         const TensorView& output) {
  require_shape("activation", "output", output, input.view().shape());
  const int64_t count = output.count();
  if (count == 0) return;
  auto& entry = cache_->entry(
      {PrimitiveKind::activation_forward, {static_cast<int64_t>(activation), count}},
      [&](const dnnl::engine& engine) {
        const auto desc = dense({count}, Tag::a);
        return Entry{dnnl::eltwise_forward(activation_forward_desc(activation, desc, engine)),
                     cache_->arguments({{DNNL_ARG_SRC, desc}, {DNNL_ARG_DST, desc}})};
      });
  F32Operands f32("activation");
  cache_->run(entry, {{DNNL_ARG_SRC, f32.read(input)}, {DNNL_ARG_DST, f32.write(output)}});
  f32.finish();
}

void CpuLayerKernels::activation_backward(Activation activation, const ConstTensorView& kept,
                                          const ConstTensorView& output_gradient,
                                          const TensorView& input_gradient) {
  require_shape("activation", "gradient of the output", output_gradient.view(),
                kept.view().shape());
  require_shape("activation", "gradient of the input", input_gradient, kept.view().shape());
  const int argument = keeps_input(activation) ? DNNL_ARG_SRC : DNNL_ARG_DST;
  const int64_t count = input_gradient.count();
  if (count == 0) return;
  auto& entry = cache_->entry(
      {PrimitiveKind::activation_backward, {static_cast<int64_t>(activation), count}},
      [&](const dnnl::engine& engine) {
        const auto desc = dense({count}, Tag::a);
        return Entry{dnnl::eltwise_backward({{algorithm_of(activation), desc, desc, 0.0f, 0.0f},
                                             engine,
                                             activation_forward_desc(activation, desc, engine)}),
                     cache_->arguments(
                         {{argument, desc}, {DNNL_ARG_DIFF_DST, desc}, {DNNL_ARG_DIFF_SRC, desc}})};
      });
  F32Operands f32("activation");
  cache_->run(entry, {{argument, f32.read(kept)},
                      {DNNL_ARG_DIFF_DST, f32.read(output_gradient)},
                      {DNNL_ARG_DIFF_SRC, f32.write(input_gradient)}});
  f32.finish();
}

}  // namespace tutti
