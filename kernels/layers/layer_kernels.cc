#include "tutti/kernels/layers/layer_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/kernels/layers/primitive_cache.h"

namespace tutti {
namespace {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;
using Tag = memory::format_tag;
using Key = PrimitiveCache::Key;
using Entry = PrimitiveCache::Entry;

// What a primitive computes; with the numbers of its shape it is its key.
enum Kind : int64_t {
  kLinearForward,
  kLinearBackwardData,
  kLinearBackwardWeights,
  kConvForward,
  kConvBackwardData,
  kConvBackwardWeights,
  kPoolForward,
  kPoolBackward,
  kActivationForward,
  kActivationBackward,
  kSoftmaxForward,
  kSoftmaxBackward,
};
memory::desc dense(const memory::dims& extents, Tag tag) {
  return {extents, memory::data_type::f32, tag};
}

void require(bool good, const char* what, const std::string& shape) {
  if (!good)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} cannot take {}: every extent must be at least 1 and the window must "
                    "fit into the image",
                    what, shape));
}

struct LinearDescs {
  memory::desc input, weight, bias, output;
  explicit LinearDescs(const LinearShape& s)
      : input(dense({s.batch, s.inputs}, Tag::ab)),
        weight(dense({s.outputs, s.inputs}, Tag::ab)),
        bias(dense({s.outputs}, Tag::a)),
        output(dense({s.batch, s.outputs}, Tag::ab)) {}
};

struct Conv2dDescs {
  memory::desc input, weight, bias, output;
  memory::dims stride, padding;
  explicit Conv2dDescs(const Conv2dShape& s)
      : input(dense({s.batch, s.input_channels, s.height, s.width}, Tag::nchw)),
        weight(dense({s.output_channels, s.input_channels, s.kernel, s.kernel}, Tag::oihw)),
        bias(dense({s.output_channels}, Tag::a)),
        output(dense({s.batch, s.output_channels, s.output_height(), s.output_width()}, Tag::nchw)),
        stride{s.stride, s.stride},
        padding{s.padding, s.padding} {}
};

void check(const LinearShape& s) {
  require(s.batch > 0 && s.inputs > 0 && s.outputs > 0, "linear",
          fmt::format("batch {}, {} inputs, {} outputs", s.batch, s.inputs, s.outputs));
}

void check(const Conv2dShape& s) {
  require(s.batch > 0 && s.input_channels > 0 && s.output_channels > 0 && s.kernel > 0 &&
              s.stride > 0 && s.padding >= 0 && s.height > 0 && s.width > 0 &&
              s.kernel <= std::min(s.height, s.width) + 2 * s.padding,
          "conv2d",
          fmt::format("images [{},{},{},{}] with {} filters of {}x{}, stride {}, padding {}",
                      s.batch, s.input_channels, s.height, s.width, s.output_channels, s.kernel,
                      s.kernel, s.stride, s.padding));
}

void check(const Pool2dShape& s) {
  require(s.batch > 0 && s.channels > 0 && s.kernel > 0 && s.stride > 0 &&
              s.kernel <= std::min(s.height, s.width),
          "pool2d",
          fmt::format("images [{},{},{},{}] with windows of {}x{}, stride {}", s.batch, s.channels,
                      s.height, s.width, s.kernel, s.kernel, s.stride));
}

void check_labels(int64_t batch, int64_t classes, const int64_t* labels) {
  require(batch > 0 && classes > 0, "softmax cross-entropy",
          fmt::format("batch {}, {} classes", batch, classes));
  for (int64_t n = 0; n < batch; ++n)
    if (labels[n] < 0 || labels[n] >= classes)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("label {} of the batch is {}; expected 0 to {}", n, labels[n], classes - 1));
}

}  // namespace

LayerKernels::LayerKernels(int threads) : cache_(std::make_unique<PrimitiveCache>(threads)) {}
LayerKernels::~LayerKernels() = default;

void LayerKernels::set_threads(int threads) { cache_->set_threads(threads); }
int LayerKernels::threads() const { return cache_->threads(); }

void LayerKernels::linear_forward(const LinearShape& s, const float* input, const float* weight,
                                  const float* bias, float* output) {
  check(s);
  auto& entry = cache_->entry(
      {kLinearForward, s.batch, s.inputs, s.outputs}, [&](const dnnl::engine& engine) {
        const LinearDescs d(s);
        return Entry{
            dnnl::inner_product_forward(
                {{prop_kind::forward_training, d.input, d.weight, d.bias, d.output}, engine}),
            cache_->arguments({{DNNL_ARG_SRC, d.input},
                               {DNNL_ARG_WEIGHTS, d.weight},
                               {DNNL_ARG_BIAS, d.bias},
                               {DNNL_ARG_DST, d.output}})};
      });
  cache_->run(entry, {{DNNL_ARG_SRC, input},
                      {DNNL_ARG_WEIGHTS, weight},
                      {DNNL_ARG_BIAS, bias},
                      {DNNL_ARG_DST, output}});
}

void LayerKernels::linear_backward(const LinearShape& s, const float* input, const float* weight,
                                   const float* output_gradient, float* input_gradient,
                                   float* weight_gradient, float* bias_gradient) {
  check(s);
  const auto forward = [](const LinearDescs& d, const dnnl::engine& engine) {
    return dnnl::inner_product_forward::primitive_desc(
        {prop_kind::forward_training, d.input, d.weight, d.bias, d.output}, engine);
  };
  auto& weights = cache_->entry(
      {kLinearBackwardWeights, s.batch, s.inputs, s.outputs}, [&](const dnnl::engine& engine) {
        const LinearDescs d(s);
        return Entry{dnnl::inner_product_backward_weights(
                         {{d.input, d.weight, d.bias, d.output}, engine, forward(d, engine)}),
                     cache_->arguments({{DNNL_ARG_SRC, d.input},
                                        {DNNL_ARG_DIFF_DST, d.output},
                                        {DNNL_ARG_DIFF_WEIGHTS, d.weight},
                                        {DNNL_ARG_DIFF_BIAS, d.bias}})};
      });
  cache_->run(weights, {{DNNL_ARG_SRC, input},
                        {DNNL_ARG_DIFF_DST, output_gradient},
                        {DNNL_ARG_DIFF_WEIGHTS, weight_gradient},
                        {DNNL_ARG_DIFF_BIAS, bias_gradient}});
  if (!input_gradient) return;
  auto& data = cache_->entry(
      {kLinearBackwardData, s.batch, s.inputs, s.outputs}, [&](const dnnl::engine& engine) {
        const LinearDescs d(s);
        return Entry{dnnl::inner_product_backward_data(
                         {{d.input, d.weight, d.output}, engine, forward(d, engine)}),
                     cache_->arguments({{DNNL_ARG_DIFF_DST, d.output},
                                        {DNNL_ARG_WEIGHTS, d.weight},
                                        {DNNL_ARG_DIFF_SRC, d.input}})};
      });
  cache_->run(data, {{DNNL_ARG_DIFF_DST, output_gradient},
                     {DNNL_ARG_WEIGHTS, weight},
                     {DNNL_ARG_DIFF_SRC, input_gradient}});
}

namespace {

Key conv_key(Kind kind, const Conv2dShape& s) {
  return {kind,     s.batch,  s.input_channels, s.height, s.width, s.output_channels,
          s.kernel, s.stride, s.padding};
}

dnnl::convolution_forward::primitive_desc conv_forward_desc(const Conv2dDescs& d,
                                                            const dnnl::engine& engine) {
  return {{prop_kind::forward_training, algorithm::convolution_direct, d.input, d.weight, d.bias,
           d.output, d.stride, d.padding, d.padding},
          engine};
}

}  // namespace

void LayerKernels::conv2d_forward(const Conv2dShape& s, const float* input, const float* weight,
                                  const float* bias, float* output) {
  check(s);
  auto& entry = cache_->entry(conv_key(kConvForward, s), [&](const dnnl::engine& engine) {
    const Conv2dDescs d(s);
    return Entry{dnnl::convolution_forward(conv_forward_desc(d, engine)),
                 cache_->arguments({{DNNL_ARG_SRC, d.input},
                                    {DNNL_ARG_WEIGHTS, d.weight},
                                    {DNNL_ARG_BIAS, d.bias},
                                    {DNNL_ARG_DST, d.output}})};
  });
  cache_->run(entry, {{DNNL_ARG_SRC, input},
                      {DNNL_ARG_WEIGHTS, weight},
                      {DNNL_ARG_BIAS, bias},
                      {DNNL_ARG_DST, output}});
}

void LayerKernels::conv2d_backward(const Conv2dShape& s, const float* input, const float* weight,
                                   const float* output_gradient, float* input_gradient,
                                   float* weight_gradient, float* bias_gradient) {
  check(s);
  auto& weights = cache_->entry(conv_key(kConvBackwardWeights, s), [&](const dnnl::engine& engine) {
    const Conv2dDescs d(s);
    return Entry{
        dnnl::convolution_backward_weights({{algorithm::convolution_direct, d.input, d.weight,
                                             d.bias, d.output, d.stride, d.padding, d.padding},
                                            engine,
                                            conv_forward_desc(d, engine)}),
        cache_->arguments({{DNNL_ARG_SRC, d.input},
                           {DNNL_ARG_DIFF_DST, d.output},
                           {DNNL_ARG_DIFF_WEIGHTS, d.weight},
                           {DNNL_ARG_DIFF_BIAS, d.bias}})};
  });
  cache_->run(weights, {{DNNL_ARG_SRC, input},
                        {DNNL_ARG_DIFF_DST, output_gradient},
                        {DNNL_ARG_DIFF_WEIGHTS, weight_gradient},
                        {DNNL_ARG_DIFF_BIAS, bias_gradient}});
  if (!input_gradient) return;
  auto& data = cache_->entry(conv_key(kConvBackwardData, s), [&](const dnnl::engine& engine) {
    const Conv2dDescs d(s);
    return Entry{dnnl::convolution_backward_data({{algorithm::convolution_direct, d.input, d.weight,
                                                   d.output, d.stride, d.padding, d.padding},
                                                  engine,
                                                  conv_forward_desc(d, engine)}),
                 cache_->arguments({{DNNL_ARG_DIFF_DST, d.output},
                                    {DNNL_ARG_WEIGHTS, d.weight},
                                    {DNNL_ARG_DIFF_SRC, d.input}})};
  });
  cache_->run(data, {{DNNL_ARG_DIFF_DST, output_gradient},
                     {DNNL_ARG_WEIGHTS, weight},
                     {DNNL_ARG_DIFF_SRC, input_gradient}});
}

namespace {

Key pool_key(Kind kind, const Pool2dShape& s) {
  return {
      kind,    static_cast<int64_t>(s.pooling), s.batch, s.channels, s.height, s.width, s.kernel,
      s.stride};
}

algorithm algorithm_of(Pooling pooling) {
  return pooling == Pooling::max ? algorithm::pooling_max : algorithm::pooling_avg_exclude_padding;
}

dnnl::pooling_forward::primitive_desc pool_forward_desc(const Pool2dShape& s,
                                                        const dnnl::engine& engine) {
  return {{prop_kind::forward_training,
           algorithm_of(s.pooling),
           dense({s.batch, s.channels, s.height, s.width}, Tag::nchw),
           dense({s.batch, s.channels, s.output_height(), s.output_width()}, Tag::nchw),
           {s.stride, s.stride},
           {s.kernel, s.kernel},
           {0, 0},
           {0, 0}},
          engine};
}

// Where each maximum stood.
void add_workspace(PrimitiveCache::Arguments& all, const Pool2dShape& s,
                   const dnnl::pooling_forward::primitive_desc& forward,
                   const dnnl::engine& engine) {
  if (s.pooling == Pooling::max)
    all.emplace(DNNL_ARG_WORKSPACE, memory(forward.workspace_desc(), engine, nullptr));
}

Entry& pool_forward(PrimitiveCache& cache, const Pool2dShape& s) {
  check(s);
  return cache.entry(pool_key(kPoolForward, s), [&](const dnnl::engine& engine) {
    const auto forward = pool_forward_desc(s, engine);
    auto all =
        cache.arguments({{DNNL_ARG_SRC, forward.src_desc()}, {DNNL_ARG_DST, forward.dst_desc()}});
    add_workspace(all, s, forward, engine);
    return Entry{dnnl::pooling_forward(forward), std::move(all)};
  });
}

Entry& pool_backward(PrimitiveCache& cache, const Pool2dShape& s) {
  check(s);
  return cache.entry(pool_key(kPoolBackward, s), [&](const dnnl::engine& engine) {
    const auto forward = pool_forward_desc(s, engine);
    const dnnl::pooling_backward::primitive_desc backward({algorithm_of(s.pooling),
                                                           forward.src_desc(),
                                                           forward.dst_desc(),
                                                           {s.stride, s.stride},
                                                           {s.kernel, s.kernel},
                                                           {0, 0},
                                                           {0, 0}},
                                                          engine, forward);
    auto all = cache.arguments(
        {{DNNL_ARG_DIFF_SRC, forward.src_desc()}, {DNNL_ARG_DIFF_DST, forward.dst_desc()}});
    add_workspace(all, s, forward, engine);
    return Entry{dnnl::pooling_backward(backward), std::move(all)};
  });
}

}  // namespace

size_t LayerKernels::pool2d_workspace_bytes(const Pool2dShape& shape) {
  const auto& arguments = pool_forward(*cache_, shape).arguments;
  const auto workspace = arguments.find(DNNL_ARG_WORKSPACE);
  return workspace == arguments.end() ? 0 : workspace->second.get_desc().get_size();
}

void LayerKernels::pool2d_forward(const Pool2dShape& shape, const float* input, float* output,
                                  std::byte* workspace) {
  auto& entry = pool_forward(*cache_, shape);
  if (shape.pooling == Pooling::max) {
    cache_->run(entry,
                {{DNNL_ARG_SRC, input}, {DNNL_ARG_DST, output}, {DNNL_ARG_WORKSPACE, workspace}});
  } else {
    cache_->run(entry, {{DNNL_ARG_SRC, input}, {DNNL_ARG_DST, output}});
  }
}

void LayerKernels::pool2d_backward(const Pool2dShape& shape, const float* output_gradient,
                                   const std::byte* workspace, float* input_gradient) {
  auto& entry = pool_backward(*cache_, shape);
  if (shape.pooling == Pooling::max) {
    cache_->run(entry, {{DNNL_ARG_DIFF_DST, output_gradient},
                        {DNNL_ARG_DIFF_SRC, input_gradient},
                        {DNNL_ARG_WORKSPACE, workspace}});
  } else {
    cache_->run(entry, {{DNNL_ARG_DIFF_DST, output_gradient}, {DNNL_ARG_DIFF_SRC, input_gradient}});
  }
}

namespace {

algorithm algorithm_of(Activation activation) {
  return activation == Activation::relu ? algorithm::eltwise_relu_use_dst_for_bwd
                                        : algorithm::eltwise_tanh_use_dst_for_bwd;
}

dnnl::eltwise_forward::primitive_desc activation_forward_desc(Activation activation,
                                                              const memory::desc& desc,
                                                              const dnnl::engine& engine) {
  return {{prop_kind::forward_training, algorithm_of(activation), desc, 0.0f, 0.0f}, engine};
}

}  // namespace

void LayerKernels::activation_forward(Activation activation, int64_t count, const float* input,
                                      float* output) {
  if (count == 0) return;
  auto& entry = cache_->entry(
      {kActivationForward, static_cast<int64_t>(activation), count},
      [&](const dnnl::engine& engine) {
        const auto desc = dense({count}, Tag::a);
        return Entry{dnnl::eltwise_forward(activation_forward_desc(activation, desc, engine)),
                     cache_->arguments({{DNNL_ARG_SRC, desc}, {DNNL_ARG_DST, desc}})};
      });
  cache_->run(entry, {{DNNL_ARG_SRC, input}, {DNNL_ARG_DST, output}});
}

void LayerKernels::activation_backward(Activation activation, int64_t count, const float* output,
                                       const float* output_gradient, float* input_gradient) {
  if (count == 0) return;
  auto& entry = cache_->entry(
      {kActivationBackward, static_cast<int64_t>(activation), count},
      [&](const dnnl::engine& engine) {
        const auto desc = dense({count}, Tag::a);
        return Entry{
            dnnl::eltwise_backward({{algorithm_of(activation), desc, desc, 0.0f, 0.0f},
                                    engine,
                                    activation_forward_desc(activation, desc, engine)}),
            cache_->arguments(
                {{DNNL_ARG_DST, desc}, {DNNL_ARG_DIFF_DST, desc}, {DNNL_ARG_DIFF_SRC, desc}})};
      });
  cache_->run(entry, {{DNNL_ARG_DST, output},
                      {DNNL_ARG_DIFF_DST, output_gradient},
                      {DNNL_ARG_DIFF_SRC, input_gradient}});
}

namespace {

dnnl::logsoftmax_forward::primitive_desc softmax_forward_desc(const memory::desc& desc,
                                                              const dnnl::engine& engine) {
  return {{prop_kind::forward_training, desc, 1}, engine};
}

}  // namespace

double LayerKernels::softmax_cross_entropy_forward(int64_t batch, int64_t classes,
                                                   const float* logits, const int64_t* labels,
                                                   float* log_probabilities) {
  check_labels(batch, classes, labels);
  auto& entry = cache_->entry({kSoftmaxForward, batch, classes}, [&](const dnnl::engine& engine) {
    const auto desc = dense({batch, classes}, Tag::ab);
    return Entry{dnnl::logsoftmax_forward(softmax_forward_desc(desc, engine)),
                 cache_->arguments({{DNNL_ARG_SRC, desc}, {DNNL_ARG_DST, desc}})};
  });
  cache_->run(entry, {{DNNL_ARG_SRC, logits}, {DNNL_ARG_DST, log_probabilities}});
  double sum = 0;
  for (int64_t n = 0; n < batch; ++n) sum -= log_probabilities[n * classes + labels[n]];
  return sum / static_cast<double>(batch);
}

void LayerKernels::softmax_cross_entropy_backward(int64_t batch, int64_t classes,
                                                  const float* log_probabilities,
                                                  const int64_t* labels, float* logit_gradient) {
  check_labels(batch, classes, labels);
  auto& entry = cache_->entry({kSoftmaxBackward, batch, classes}, [&](const dnnl::engine& engine) {
    const auto desc = dense({batch, classes}, Tag::ab);
    return Entry{
        dnnl::logsoftmax_backward({{desc, desc, 1}, engine, softmax_forward_desc(desc, engine)}),
        cache_->arguments(
            {{DNNL_ARG_DST, desc}, {DNNL_ARG_DIFF_DST, desc}, {DNNL_ARG_DIFF_SRC, desc}})};
  });
  // The loss is -log_probability[label] / batch, so its gradient by the log probabilities is a
  // single number per row.
  std::vector<float> one_hot(static_cast<size_t>(batch * classes));
  for (int64_t n = 0; n < batch; ++n)
    one_hot[static_cast<size_t>(n * classes + labels[n])] = -1.0f / static_cast<float>(batch);
  cache_->run(entry, {{DNNL_ARG_DST, log_probabilities},
                      {DNNL_ARG_DIFF_DST, one_hot.data()},
                      {DNNL_ARG_DIFF_SRC, logit_gradient}});
}

}  // namespace tutti
