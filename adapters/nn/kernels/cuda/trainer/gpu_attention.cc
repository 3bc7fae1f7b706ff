// Attention of GpuLayerKernels: matrix products for several heads in one call, with kernels between
// them. Scores are f32. They and the values derived from them stay in the GPU's cache from one
// product to the next.

#include <algorithm>
#include <cmath>

#include "tutti/adapters/nn/kernels/cuda/trainer/gpu_layer_kernels.h"
#include "tutti/adapters/nn/kernels/cuda/trainer/gpu_operands.h"
#include "tutti/kernels/cuda/device/range.h"

namespace tutti::cuda {

namespace {

// Most bytes of one group's scores. These and the values derived from them must fit into an H100's
// cache (50 MB).
constexpr int64_t kMostScoreBytes = int64_t{32} << 20;
// Rows of scores are padded to multiples of this many elements, so that they begin at multiples of
// 16 bytes in every dtype.
constexpr int64_t kPitch = 8;

int64_t rounded_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Heads whose products are computed together: heads of one sequence, or the same head of several
// sequences.
struct Group {
  int64_t batch, head, count;
};

class AttentionParts {
 public:
  AttentionParts(const AttentionShape& s, DataType dtype)
      : s_(s),
        dtype_(dtype),
        features_(s.options.heads * s.width),
        pitch_(rounded_up(s.length, kPitch)),
        is_over_batch_(s.batch > s.options.heads) {
    const int64_t all = is_over_batch_ ? s.batch : s.options.heads;
    const int64_t most =
        std::clamp<int64_t>(kMostScoreBytes / std::max<int64_t>(4 * s.length * pitch_, 1), 1, all);
    const int64_t parts = (all + most - 1) / most;
    each_ = (all + parts - 1) / parts;
  }

  /// Returns the number of elements in a group's scores.
  int64_t scores() const { return each_ * s_.length * pitch_; }
  size_t bytes(DataType dtype) const {
    return static_cast<size_t>(rounded_up(scores() * size_of(dtype), 256));
  }
  template <class Body>
  void each_group(Body body) const {
    const int64_t all = is_over_batch_ ? s_.batch : s_.options.heads;
    const int64_t others = is_over_batch_ ? s_.options.heads : s_.batch;
    for (int64_t other = 0; other < others; ++other)
      for (int64_t first = 0; first < all; first += each_) {
        const int64_t count = std::min(each_, all - first);
        body(is_over_batch_ ? Group{first, other, count} : Group{other, first, count});
      }
  }
  ScoreRows rows(const Group& group) const {
    return {group.count,
            s_.length,
            pitch_,
            (is_over_batch_ ? s_.options.heads : 1) * s_.length,
            static_cast<float>(1 / std::sqrt(static_cast<double>(s_.width))),
            s_.options.causal};
  }
  int64_t first_log(const Group& group) const {
    return (group.batch * s_.options.heads + group.head) * s_.length;
  }
  /// Returns part number `part` of the `parts` (queries, keys, values) that are side by side in
  /// each token.
  Matrix tokens(const void* data, int64_t part, int64_t parts, const Group& group,
                bool is_transposed = false) const {
    const int64_t row = parts * features_;
    const int64_t first = group.batch * s_.length * row + part * features_ + group.head * s_.width;
    return {static_cast<std::byte*>(const_cast<void*>(data)) + first * size_of(dtype_),
            dtype_,
            s_.width,
            s_.length,
            row,
            is_transposed,
            is_over_batch_ ? s_.length * row : s_.width};
  }
  Matrix scores(std::byte* data, DataType dtype, bool is_transposed = false) const {
    return {data, dtype, s_.length, s_.length, pitch_, is_transposed, s_.length * pitch_};
  }

 private:
  const AttentionShape s_;
  const DataType dtype_;
  const int64_t features_, pitch_;
  const bool is_over_batch_;
  int64_t each_ = 1;  // heads per group
};

}  // namespace

// Row-major S[queries, keys] = Q K^T is column-major S[keys, queries] = K^T Q with matrices [width,
// tokens]; the other products are expressed in the same way.
void GpuLayerKernels::attention_forward(const AttentionOptions& options,
                                        const ConstTensorView& packed, const TensorView& output,
                                        const TensorView& log_sums) {
  const Range range("attention forward");
  const auto s = attention_shape(options, packed.view().shape());
  require_shape("attention", "output", output, attention_output(s));
  require_shape("attention", "logarithms", log_sums, Shape{s.batch, options.heads, s.length});
  const GpuOperands operands("attention", device_);
  const auto dtype = operands.float_type(packed);
  operands.require(output, dtype);
  auto* logs = operands.of<float>(log_sums);
  if (output.count() == 0) return;
  const auto stream = output.stream();
  const auto* data = packed.view().data();
  const AttentionParts parts(s, dtype);
  auto* scores = scratch(Use::copies, parts.bytes(DataType::f32) + parts.bytes(dtype), stream);
  auto* shares = scores + parts.bytes(DataType::f32);
  parts.each_group([&](const Group& group) {
    multiply({parts.tokens(data, 1, 3, group, true), parts.tokens(data, 0, 3, group),
              parts.scores(scores, DataType::f32), group.count},
             stream);
    by_type(dtype, [&](auto zero) {
      using T = decltype(zero);
      launch(AttentionShares<T>{parts.rows(group), reinterpret_cast<const float*>(scores),
                                reinterpret_cast<T*>(shares), logs + parts.first_log(group)},
             stream);
    });
    multiply({parts.tokens(data, 2, 3, group), parts.scores(shares, dtype),
              parts.tokens(output.data(), 0, 1, group), group.count},
             stream);
  });
}

// P is the softmax, O = P V, and dS is the gradient of the scores. Then dV = P^T dO, dP = dO V^T,
// dQ = dS K, dK = dS^T Q.
void GpuLayerKernels::attention_backward(const AttentionOptions& options,
                                         const ConstTensorView& packed,
                                         const ConstTensorView& output,
                                         const ConstTensorView& log_sums,
                                         const ConstTensorView& output_gradient,
                                         const TensorView& packed_gradient) {
  const Range range("attention backward");
  const auto s = attention_shape(options, packed.view().shape());
  require_shape("attention", "output", output.view(), attention_output(s));
  require_shape("attention", "gradient of the output", output_gradient.view(), attention_output(s));
  require_shape("attention", "logarithms", log_sums.view(),
                Shape{s.batch, options.heads, s.length});
  require_shape("attention", "gradient of the input", packed_gradient, packed.view().shape());
  const GpuOperands operands("attention", device_);
  const auto dtype = operands.float_type(packed);
  operands.require(output_gradient, dtype);
  operands.require(packed_gradient, dtype);
  const auto* logs = operands.of<float>(log_sums);
  if (output.view().count() == 0) return;
  const auto stream = packed_gradient.stream();
  const auto* data = packed.view().data();
  const auto* above = output_gradient.view().data();
  auto* to = packed_gradient.data();
  const AttentionParts parts(s, dtype);
  auto* scores =
      scratch(Use::copies, 2 * (parts.bytes(DataType::f32) + parts.bytes(dtype)), stream);
  auto* gradients = scores + parts.bytes(DataType::f32);
  auto* shares = gradients + parts.bytes(DataType::f32);
  auto* slopes = shares + parts.bytes(dtype);
  parts.each_group([&](const Group& group) {
    const auto queries = parts.tokens(data, 0, 3, group), keys = parts.tokens(data, 1, 3, group);
    const auto outputs = parts.tokens(above, 0, 1, group);
    multiply({parts.tokens(data, 1, 3, group, true), queries, parts.scores(scores, DataType::f32),
              group.count},
             stream);
    multiply({parts.tokens(data, 2, 3, group, true), outputs,
              parts.scores(gradients, DataType::f32), group.count},
             stream);
    by_type(dtype, [&](auto zero) {
      using T = decltype(zero);
      launch(AttentionSlopes<T>{parts.rows(group), reinterpret_cast<const float*>(scores),
                                reinterpret_cast<const float*>(gradients),
                                logs + parts.first_log(group), reinterpret_cast<T*>(shares),
                                reinterpret_cast<T*>(slopes)},
             stream);
    });
    multiply({keys, parts.scores(slopes, dtype), parts.tokens(to, 0, 3, group), group.count},
             stream);
    multiply(
        {queries, parts.scores(slopes, dtype, true), parts.tokens(to, 1, 3, group), group.count},
        stream);
    multiply(
        {outputs, parts.scores(shares, dtype, true), parts.tokens(to, 2, 3, group), group.count},
        stream);
  });
}

}  // namespace tutti::cuda
