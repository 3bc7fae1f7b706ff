// Attention of CpuLayerKernels. oneDNN computes the products one block of queries at a time, so
// that scores need only kBlock * length numbers. Keys that no query of a block sees are skipped.

#include <algorithm>
#include <cmath>

#include "tutti/adapters/nn/kernels/cpu/cpu_layer_kernels.h"
#include "tutti/adapters/nn/kernels/cpu/f32_operands.h"
#include "tutti/adapters/nn/kernels/cpu/primitive_cache.h"
#include "tutti/adapters/nn/kernels/cpu/row_loops.h"

namespace tutti {
namespace {

constexpr int64_t kBlock = 64;  // queries per block

// One head of one batch element: its shape, and the offsets of its queries, keys, values and
// results.
struct Head {
  int64_t length, width, packed_step, output_step;
  float scale;
  bool causal;
  int64_t packed, output, log_sums;  // offsets

  int64_t query(int64_t row) const { return packed + row * packed_step; }
  int64_t key(int64_t row) const { return packed + output_step + row * packed_step; }
  int64_t value(int64_t row) const { return packed + 2 * output_step + row * packed_step; }
  // Returns how many keys the block of queries that ends at `end` sees.
  int64_t seen(int64_t end) const { return causal ? end : length; }
};

template <class Body>
void for_each_head(const AttentionShape& s, Body body) {
  const int64_t features = s.options.heads * s.width;
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width)));
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t h = 0; h < s.options.heads; ++h)
      body(Head{s.length, s.width, 3 * features, features, scale, s.options.causal,
                n * s.length * 3 * features + h * s.width, n * s.length * features + h * s.width,
                (n * s.options.heads + h) * s.length});
}

}  // namespace

void CpuLayerKernels::attention_forward(const AttentionOptions& options,
                                        const ConstTensorView& packed, const TensorView& output,
                                        const TensorView& log_sums) {
  const auto s = attention_shape(options, packed.view().shape());
  require_shape("attention", "output", output, attention_output(s));
  require_shape("attention", "logarithms", log_sums, Shape{s.batch, options.heads, s.length});
  F32Operands f32("attention");
  const float* in = f32.read(packed);
  float *out = f32.write(output), *logs = f32.exactly(log_sums);
  float* scores = scratch(kBlock * s.length, 0);
  for_each_head(s, [&](const Head& head) {
    for (int64_t begin = 0; begin < s.length; begin += kBlock) {
      const int64_t rows = std::min(kBlock, s.length - begin), seen = head.seen(begin + rows);
      cache_->multiply('N', 'T', rows, seen, s.width, head.scale, in + head.query(begin),
                       head.packed_step, in + head.key(0), head.packed_step, 0, scores, seen);
      for (int64_t i = 0; i < rows; ++i) {
        float* row = scores + i * seen;
        const int64_t visible = head.causal ? begin + i + 1 : seen;
        const float most = largest(row, visible);
        const double sum = exponentials(row, most, row, visible);
        multiply_row(row, static_cast<float>(1 / sum), visible);
        std::fill(row + visible, row + seen, 0.0f);
        logs[head.log_sums + begin + i] = most + static_cast<float>(std::log(sum));
      }
      cache_->multiply('N', 'N', rows, s.width, seen, 1, scores, seen, in + head.value(0),
                       head.packed_step, 0, out + head.output + begin * head.output_step,
                       head.output_step);
    }
  });
  f32.finish();
}

// P is the softmax, O = P V and D = rowsum(dO O). Then dV = P^T dO, dS = P (dO V^T - D), dQ = scale
// dS K, dK = scale dS^T Q (Dao et al. 2022).
void CpuLayerKernels::attention_backward(const AttentionOptions& options,
                                         const ConstTensorView& packed,
                                         const ConstTensorView& output,
                                         const ConstTensorView& log_sums,
                                         const ConstTensorView& output_gradient,
                                         const TensorView& packed_gradient) {
  const auto s = attention_shape(options, packed.view().shape());
  require_shape("attention", "output", output.view(), attention_output(s));
  require_shape("attention", "gradient of the output", output_gradient.view(), attention_output(s));
  require_shape("attention", "logarithms", log_sums.view(),
                Shape{s.batch, options.heads, s.length});
  require_shape("attention", "gradient of the input", packed_gradient, packed.view().shape());
  F32Operands f32("attention");
  const float *in = f32.read(packed), *out = f32.read(output), *dout = f32.read(output_gradient);
  const float* logs = f32.exactly(log_sums);
  float* din = f32.write(packed_gradient);
  std::fill_n(din, packed_gradient.count(), 0.0f);
  float* softmax = scratch(2 * kBlock * s.length, 0);
  float* slopes = softmax + kBlock * s.length;
  for_each_head(s, [&](const Head& head) {
    for (int64_t begin = 0; begin < s.length; begin += kBlock) {
      const int64_t rows = std::min(kBlock, s.length - begin), seen = head.seen(begin + rows);
      const int64_t at = head.output + begin * head.output_step;
      cache_->multiply('N', 'T', rows, seen, s.width, head.scale, in + head.query(begin),
                       head.packed_step, in + head.key(0), head.packed_step, 0, softmax, seen);
      for (int64_t i = 0; i < rows; ++i) {
        float* row = softmax + i * seen;
        const int64_t visible = head.causal ? begin + i + 1 : seen;
        exponentials(row, logs[head.log_sums + begin + i], row, visible);
        std::fill(row + visible, row + seen, 0.0f);
      }
      cache_->multiply('T', 'N', seen, s.width, rows, 1, softmax, seen, dout + at, head.output_step,
                       1, din + head.value(0), head.packed_step);
      cache_->multiply('N', 'T', rows, seen, s.width, 1, dout + at, head.output_step,
                       in + head.value(0), head.packed_step, 0, slopes, seen);
      for (int64_t i = 0; i < rows; ++i) {
        const float *o = out + at + i * head.output_step, *d = dout + at + i * head.output_step;
        const auto base = static_cast<float>(sum_of_products(o, d, s.width));
        softmax_gradient(softmax + i * seen, base, slopes + i * seen, seen);
      }
      cache_->multiply('N', 'N', rows, s.width, seen, head.scale, slopes, seen, in + head.key(0),
                       head.packed_step, 0, din + head.query(begin), head.packed_step);
      cache_->multiply('T', 'N', seen, s.width, rows, head.scale, slopes, seen,
                       in + head.query(begin), head.packed_step, 1, din + head.key(0),
                       head.packed_step);
    }
  });
  f32.finish();
}

}  // namespace tutti
