// Convolutions and pooling of CpuLayerKernels.

#include "tutti/adapters/nn/kernels/cpu/cpu_layer_kernels.h"
#include "tutti/adapters/nn/kernels/cpu/f32_operands.h"
#include "tutti/adapters/nn/kernels/cpu/primitive_cache.h"

namespace tutti {
namespace {

using dnnl::algorithm;
using dnnl::prop_kind;
using Tag = dnnl::memory::format_tag;
using Entry = PrimitiveCache::Entry;
using Dims = dnnl::memory::dims;

// Returns oneDNN's extents: `leading` (batch and channels), then those of `all` that the
// convolution uses.
Dims spatial(const ConvolutionShape& s, const ConvolutionShape::Extents& all, Dims leading = {}) {
  leading.insert(leading.end(), all.end() - s.dimensions, all.end());
  return leading;
}

// Descriptors of a convolution. The caller's images are row-major. Windows of more than one pixel
// over many channels are twice as fast in oneDNN's own layouts, even with the conversion; `any`
// lets oneDNN choose.
struct ConvolutionDescs {
  dnnl::memory::desc input, weight, bias, output;        // in the caller's layout
  dnnl::memory::desc any_input, any_weight, any_output;  // in a layout the primitive may choose
  Dims stride, padding;
  dnnl::convolution_forward::primitive_desc forward;
  ConvolutionDescs(const ConvolutionShape& s, bool has_bias, const dnnl::engine& engine)
      : input(dense(spatial(s, s.image, {s.batch, s.input_channels}), images(s))),
        weight(dense(spatial(s, s.kernel, {s.output_channels, s.input_channels}), images(s))),
        bias(has_bias ? dense({s.output_channels}, Tag::a) : dnnl::memory::desc()),
        output(dense(spatial(s, s.output(), {s.batch, s.output_channels}), images(s))),
        any_input(any(s, input)),
        any_weight(any(s, weight)),
        any_output(any(s, output)),
        stride(spatial(s, s.stride)),
        padding(spatial(s, s.padding)),
        forward({prop_kind::forward_training, algorithm::convolution_direct, any_input, any_weight,
                 bias, any_output, stride, padding, padding},
                engine) {}
  static Tag images(const ConvolutionShape& s) {
    return s.dimensions == 2 ? Tag::abcd : Tag::abcde;
  }
  static dnnl::memory::desc any(const ConvolutionShape& s, const dnnl::memory::desc& plain) {
    const bool is_wide = s.kernel[2] > 1 && s.output_channels >= 16 &&
                         (s.input_channels >= 16 || s.input_channels == 3);
    return is_wide ? dense(plain.dims(), Tag::any) : plain;
  }
};

PrimitiveCache::Key convolution_key(PrimitiveKind kind, const ConvolutionShape& s, bool has_bias) {
  return {kind,
          {s.batch, s.input_channels, s.output_channels, s.dimensions, s.image[0], s.image[1],
           s.image[2], s.kernel[0], s.kernel[1], s.kernel[2], s.stride[0], s.stride[1], s.stride[2],
           s.padding[0], s.padding[1], s.padding[2], has_bias}};
}

algorithm algorithm_of(Pooling pooling) {
  return pooling == Pooling::max ? algorithm::pooling_max : algorithm::pooling_avg_exclude_padding;
}

struct PoolingDescs {
  dnnl::memory::desc input, output;
  Dims stride, kernel, padding;
  dnnl::pooling_forward::primitive_desc forward;
  PoolingDescs(const PoolingShape& s, const dnnl::engine& engine)
      : input(dense({s.batch, s.channels, s.height, s.width}, Tag::nchw)),
        output(dense({s.batch, s.channels, s.output_height(), s.output_width()}, Tag::nchw)),
        stride{s.options.stride, s.options.stride},
        kernel{s.options.kernel, s.options.kernel},
        padding{s.options.padding, s.options.padding},
        forward({prop_kind::forward_training, algorithm_of(s.options.pooling), input, output,
                 stride, kernel, padding, padding},
                engine) {}
};

PrimitiveCache::Key pooling_key(PrimitiveKind kind, const PoolingShape& s) {
  return {kind,
          {static_cast<int64_t>(s.options.pooling), s.options.kernel, s.options.stride,
           s.options.padding, s.batch, s.channels, s.height, s.width}};
}

Entry& pooling_forward_entry(PrimitiveCache& cache, const PoolingShape& s) {
  return cache.entry(
      pooling_key(PrimitiveKind::pooling_forward, s), [&](const dnnl::engine& engine) {
        const PoolingDescs d(s, engine);
        auto all = cache.arguments({{DNNL_ARG_SRC, d.input}, {DNNL_ARG_DST, d.output}});
        if (s.options.pooling == Pooling::max)
          all.merge(cache.arguments({{DNNL_ARG_WORKSPACE, d.forward.workspace_desc()}}));
        return Entry{dnnl::pooling_forward(d.forward), std::move(all)};
      });
}

}  // namespace

void CpuLayerKernels::convolution_forward(const ConvolutionOptions& options,
                                          const ConstTensorView& input,
                                          const ConstTensorView& weight,
                                          const ConstTensorView& bias, const TensorView& output) {
  const auto s = convolution_shape(options, input.view().shape(), weight.view().shape());
  require_shape("convolution", "output", output, convolution_output(s));
  const bool has_bias = bias.view().count() > 0;
  if (has_bias) require_shape("convolution", "bias", bias.view(), Shape{s.output_channels});
  if (s.batch == 0) return;
  auto& entry = cache_->entry(
      convolution_key(PrimitiveKind::convolution_forward, s, has_bias),
      [&](const dnnl::engine& engine) {
        const ConvolutionDescs d(s, has_bias, engine);
        Entry made{dnnl::convolution_forward(d.forward), {}};
        cache_->add(made, DNNL_ARG_SRC, false, d.input, d.forward.src_desc());
        cache_->add(made, DNNL_ARG_WEIGHTS, false, d.weight, d.forward.weights_desc());
        cache_->add(made, DNNL_ARG_DST, true, d.output, d.forward.dst_desc());
        if (has_bias) cache_->add(made, DNNL_ARG_BIAS, false, d.bias, d.bias);
        return made;
      });
  F32Operands f32("convolution");
  cache_->run(entry, {{DNNL_ARG_SRC, f32.read(input)},
                      {DNNL_ARG_WEIGHTS, f32.read(weight)},
                      {DNNL_ARG_BIAS, has_bias ? f32.read(bias) : nullptr},
                      {DNNL_ARG_DST, f32.write(output)}});
  f32.finish();
}

void CpuLayerKernels::convolution_backward_input(const ConvolutionOptions& options,
                                                 const ConstTensorView& weight,
                                                 const ConstTensorView& output_gradient,
                                                 const TensorView& input_gradient) {
  const auto s = convolution_shape(options, input_gradient.shape(), weight.view().shape());
  require_shape("convolution", "gradient of the output", output_gradient.view(),
                convolution_output(s));
  if (s.batch == 0) return;
  auto& entry = cache_->entry(
      convolution_key(PrimitiveKind::convolution_backward_input, s, false),
      [&](const dnnl::engine& engine) {
        const ConvolutionDescs d(s, false, engine);
        const dnnl::convolution_backward_data::primitive_desc backward(
            {algorithm::convolution_direct, d.any_input, d.any_weight, d.any_output, d.stride,
             d.padding, d.padding},
            engine, d.forward);
        Entry made{dnnl::convolution_backward_data(backward), {}};
        cache_->add(made, DNNL_ARG_DIFF_DST, false, d.output, backward.diff_dst_desc());
        cache_->add(made, DNNL_ARG_WEIGHTS, false, d.weight, backward.weights_desc());
        cache_->add(made, DNNL_ARG_DIFF_SRC, true, d.input, backward.diff_src_desc());
        return made;
      });
  F32Operands f32("convolution");
  cache_->run(entry, {{DNNL_ARG_DIFF_DST, f32.read(output_gradient)},
                      {DNNL_ARG_WEIGHTS, f32.read(weight)},
                      {DNNL_ARG_DIFF_SRC, f32.write(input_gradient)}});
  f32.finish();
}

void CpuLayerKernels::convolution_backward_weights(const ConvolutionOptions& options,
                                                   const ConstTensorView& input,
                                                   const ConstTensorView& output_gradient,
                                                   const TensorView& weight_gradient,
                                                   const TensorView& bias_gradient) {
  const auto s = convolution_shape(options, input.view().shape(), weight_gradient.shape());
  require_shape("convolution", "gradient of the output", output_gradient.view(),
                convolution_output(s));
  const bool has_bias = bias_gradient.count() > 0;
  if (has_bias)
    require_shape("convolution", "gradient of the bias", bias_gradient, Shape{s.output_channels});
  if (s.batch == 0) return;
  auto& entry = cache_->entry(
      convolution_key(PrimitiveKind::convolution_backward_weights, s, has_bias),
      [&](const dnnl::engine& engine) {
        const ConvolutionDescs d(s, has_bias, engine);
        const dnnl::convolution_backward_weights::primitive_desc backward(
            {algorithm::convolution_direct, d.any_input, d.any_weight, d.bias, d.any_output,
             d.stride, d.padding, d.padding},
            engine, d.forward);
        Entry made{dnnl::convolution_backward_weights(backward), {}};
        cache_->add(made, DNNL_ARG_SRC, false, d.input, backward.src_desc());
        cache_->add(made, DNNL_ARG_DIFF_DST, false, d.output, backward.diff_dst_desc());
        cache_->add(made, DNNL_ARG_DIFF_WEIGHTS, true, d.weight, backward.diff_weights_desc());
        if (has_bias) cache_->add(made, DNNL_ARG_DIFF_BIAS, true, d.bias, d.bias);
        return made;
      });
  F32Operands f32("convolution");
  float* pass = scratch(weight_gradient.count(), bias_gradient.count());
  cache_->run(entry, {{DNNL_ARG_SRC, f32.read(input)},
                      {DNNL_ARG_DIFF_DST, f32.read(output_gradient)},
                      {DNNL_ARG_DIFF_WEIGHTS, pass},
                      {DNNL_ARG_DIFF_BIAS, pass + weight_gradient.count()}});
  add_to(f32.exactly(weight_gradient), pass, weight_gradient.count());
  add_to(f32.exactly(bias_gradient), pass + weight_gradient.count(), bias_gradient.count());
}

int64_t CpuLayerKernels::pooling_workspace_bytes(const PoolingOptions& options,
                                                 const Shape& input) {
  const auto s = pooling_shape(options, input);
  if (s.batch == 0 || options.pooling != Pooling::max) return 0;
  const auto& arguments = pooling_forward_entry(*cache_, s).arguments;
  return static_cast<int64_t>(arguments.at(DNNL_ARG_WORKSPACE).get_desc().get_size());
}

void CpuLayerKernels::pooling_forward(const PoolingOptions& options, const ConstTensorView& input,
                                      const TensorView& output, const TensorView& workspace) {
  const auto s = pooling_shape(options, input.view().shape());
  require_shape("pooling", "output", output, pooling_output(s));
  require_shape("pooling", "workspace", workspace,
                Shape{pooling_workspace_bytes(options, input.view().shape())});
  if (s.batch == 0) return;
  F32Operands f32("pooling");
  cache_->run(pooling_forward_entry(*cache_, s), {{DNNL_ARG_SRC, f32.read(input)},
                                                  {DNNL_ARG_DST, f32.write(output)},
                                                  {DNNL_ARG_WORKSPACE, workspace.data()}});
  f32.finish();
}

void CpuLayerKernels::pooling_backward(const PoolingOptions& options,
                                       const ConstTensorView& output_gradient,
                                       const ConstTensorView& workspace,
                                       const TensorView& input_gradient) {
  const auto s = pooling_shape(options, input_gradient.shape());
  require_shape("pooling", "gradient of the output", output_gradient.view(), pooling_output(s));
  require_shape("pooling", "workspace", workspace.view(),
                Shape{pooling_workspace_bytes(options, input_gradient.shape())});
  if (s.batch == 0) return;
  auto& entry = cache_->entry(
      pooling_key(PrimitiveKind::pooling_backward, s), [&](const dnnl::engine& engine) {
        const PoolingDescs d(s, engine);
        auto all = cache_->arguments({{DNNL_ARG_DIFF_SRC, d.input}, {DNNL_ARG_DIFF_DST, d.output}});
        if (s.options.pooling == Pooling::max)
          all.merge(cache_->arguments({{DNNL_ARG_WORKSPACE, d.forward.workspace_desc()}}));
        return Entry{dnnl::pooling_backward({{algorithm_of(s.options.pooling), d.input, d.output,
                                              d.stride, d.kernel, d.padding, d.padding},
                                             engine,
                                             d.forward}),
                     std::move(all)};
      });
  F32Operands f32("pooling");
  cache_->run(entry, {{DNNL_ARG_DIFF_DST, f32.read(output_gradient)},
                      {DNNL_ARG_DIFF_SRC, f32.write(input_gradient)},
                      {DNNL_ARG_WORKSPACE, workspace.view().data()}});
  f32.finish();
}

}  // namespace tutti
