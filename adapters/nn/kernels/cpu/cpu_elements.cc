// Operations of CpuLayerKernels on rows and elements that do not use oneDNN, and log softmax.

#include <fmt/format.h>

#include <algorithm>

#include "tutti/adapters/nn/kernels/cpu/cpu_layer_kernels.h"
#include "tutti/adapters/nn/kernels/cpu/f32_operands.h"
#include "tutti/adapters/nn/kernels/cpu/primitive_cache.h"
#include "tutti/base/error.h"
#include "tutti/kernels/convert.h"

namespace tutti {
namespace {

// Checks the arguments of an embedding and calls body(row of the table, row of the output).
template <class Body>
void for_each_index(const TensorView& indices, const Shape& table, const TensorView& output,
                    Body body) {
  std::vector<int64_t> extents(indices.shape().extents().begin(), indices.shape().extents().end());
  if (indices.dtype() != DataType::i64 || table.rank() != 2)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("embedding got indices {}{} and a table {}; expected i64[...] and "
                    "[rows, features]",
                    to_string(indices.dtype()), indices.shape().to_string(), table.to_string()));
  extents.push_back(table[1]);
  require_shape("embedding", "output", output, Shape(extents));
  const auto* all = indices.as<int64_t>();
  for (int64_t i = 0; i < indices.count(); ++i)
    if (all[i] < 0 || all[i] >= table[0])
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("index {} of an embedding is {}; expected 0 to {}", i, all[i], table[0] - 1));
  for (int64_t i = 0; i < indices.count(); ++i) body(all[i], i);
}

dnnl::memory::dims rows_of(const TensorView& view) {
  const auto& shape = view.shape();
  const int64_t classes = shape.rank() >= 1 ? shape[shape.rank() - 1] : 0;
  if (classes < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("log softmax cannot take {}; expected [..., classes] with at least one "
                            "class",
                            shape.to_string()));
  return {view.count() / classes, classes};
}

}  // namespace

void CpuLayerKernels::fill_zero(const TensorView& tensor) {
  std::fill_n(F32Operands("zero").exactly(tensor), tensor.count(), 0.0f);
}

void CpuLayerKernels::global_average_forward(const ConstTensorView& input,
                                             const TensorView& output) {
  const auto s = channels_shape("global average", input.view().shape());
  require_shape("global average", "output", output, Shape{s.batch, s.channels});
  F32Operands f32("global average");
  const float* x = f32.read(input);
  float* y = f32.write(output);
  for (int64_t plane = 0; plane < s.batch * s.channels; ++plane, x += s.positions) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < s.positions; ++i) sum += static_cast<double>(x[i]);
    y[plane] = static_cast<float>(sum / static_cast<double>(s.positions));
  }
  f32.finish();
}

void CpuLayerKernels::global_average_backward(const ConstTensorView& output_gradient,
                                              const TensorView& input_gradient) {
  const auto s = channels_shape("global average", input_gradient.shape());
  require_shape("global average", "gradient of the output", output_gradient.view(),
                Shape{s.batch, s.channels});
  F32Operands f32("global average");
  const float* dy = f32.read(output_gradient);
  float* dx = f32.write(input_gradient);
  for (int64_t plane = 0; plane < s.batch * s.channels; ++plane, dx += s.positions)
    std::fill_n(dx, s.positions, dy[plane] / static_cast<float>(s.positions));
  f32.finish();
}

void CpuLayerKernels::log_softmax_forward(const ConstTensorView& input, const TensorView& output) {
  const auto extents = rows_of(input.view());
  require_shape("log softmax", "output", output, input.view().shape());
  if (output.count() == 0) return;
  auto& entry =
      cache_->entry({PrimitiveKind::softmax_forward, extents}, [&](const dnnl::engine& engine) {
        const auto desc = dense(extents, dnnl::memory::format_tag::ab);
        return PrimitiveCache::Entry{
            dnnl::logsoftmax_forward(log_softmax_desc(desc, engine)),
            cache_->arguments({{DNNL_ARG_SRC, desc}, {DNNL_ARG_DST, desc}})};
      });
  F32Operands f32("log softmax");
  cache_->run(entry, {{DNNL_ARG_SRC, f32.read(input)}, {DNNL_ARG_DST, f32.write(output)}});
  f32.finish();
}

void CpuLayerKernels::log_softmax_backward(const ConstTensorView& output,
                                           const ConstTensorView& output_gradient,
                                           const TensorView& input_gradient) {
  const auto extents = rows_of(output.view());
  require_shape("log softmax", "gradient of the output", output_gradient.view(),
                output.view().shape());
  require_shape("log softmax", "gradient of the input", input_gradient, output.view().shape());
  if (input_gradient.count() == 0) return;
  auto& entry =
      cache_->entry({PrimitiveKind::softmax_backward, extents}, [&](const dnnl::engine& engine) {
        const auto desc = dense(extents, dnnl::memory::format_tag::ab);
        return PrimitiveCache::Entry{
            dnnl::logsoftmax_backward({{desc, desc, 1}, engine, log_softmax_desc(desc, engine)}),
            cache_->arguments(
                {{DNNL_ARG_DST, desc}, {DNNL_ARG_DIFF_DST, desc}, {DNNL_ARG_DIFF_SRC, desc}})};
      });
  F32Operands f32("log softmax");
  cache_->run(entry, {{DNNL_ARG_DST, f32.read(output)},
                      {DNNL_ARG_DIFF_DST, f32.read(output_gradient)},
                      {DNNL_ARG_DIFF_SRC, f32.write(input_gradient)}});
  f32.finish();
}

void CpuLayerKernels::embedding_forward(const ConstTensorView& indices,
                                        const ConstTensorView& table, const TensorView& output) {
  F32Operands f32("embedding");
  const float* rows = f32.read(table);
  float* y = f32.write(output);
  const auto& shape = table.view().shape();
  for_each_index(indices.view(), shape, output, [&](int64_t row, int64_t i) {
    std::copy_n(rows + row * shape[1], shape[1], y + i * shape[1]);
  });
  f32.finish();
}

void CpuLayerKernels::embedding_backward(const ConstTensorView& indices,
                                         const ConstTensorView& output_gradient,
                                         const TensorView& table_gradient) {
  F32Operands f32("embedding");
  const float* dy = f32.read(output_gradient);
  float* rows = f32.exactly(table_gradient);
  const auto& shape = table_gradient.shape();
  for_each_index(indices.view(), shape, output_gradient.view(), [&](int64_t row, int64_t i) {
    add_to(rows + row * shape[1], dy + i * shape[1], shape[1]);
  });
}

void CpuLayerKernels::dropout(const RandomKey& key, uint64_t first, double probability,
                              const ConstTensorView& input, const TensorView& output) {
  require_shape("dropout", "output", output, input.view().shape());
  if (!(probability >= 0 && probability < 1))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("dropout's probability is {}; expected 0 to below 1", probability));
  F32Operands f32("dropout");
  const float* x = f32.read(input);
  float* y = f32.write(output);
  const auto count = static_cast<uint64_t>(output.count());
  const auto scale = static_cast<float>(1 / (1 - probability));
  // Random numbers below the threshold are dropped. They have 24 bits, so that they are the same in
  // f32 everywhere.
  const auto threshold = static_cast<uint32_t>(probability * 0x1p24);
  std::array<uint32_t, 4> words{};
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t element = first + i;
    if (i == 0 || element % 4 == 0) words = random_block(key, element / 4);
    y[i] = (words[element % 4] >> 8) < threshold ? 0.0f : x[i] * scale;
  }
  f32.finish();
}

void CpuLayerKernels::cast_to(const ConstTensorView& input, const TensorView& output) {
  require_shape("cast", "output", output, input.view().shape());
  F32Operands checks("cast");
  checks.read(input);
  const auto& from = input.view();
  cast(from.dtype(), from.data(), output.dtype(), output.data(), output.count());
}

void CpuLayerKernels::add(const ConstTensorView& source, const TensorView& target) {
  require_shape("add", "source", source.view(), target.shape());
  F32Operands f32("add");
  add_to(f32.update(target), f32.read(source), target.count());
  f32.finish();
}

}  // namespace tutti
