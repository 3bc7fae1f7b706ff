#include <type_traits>

#include "tutti/base/check.h"
#include "tutti/kernels/element.h"
#include "tutti/kernels/reduce.h"
#include "tutti/kernels/scaling.h"

namespace tutti {

namespace {

// A NaN on either side wins. Of two zeros that differ in sign, the first is kept.
template <class T>
T lesser(T a, T b) {
  return b < a || b != b ? b : a;
}
template <class T>
T greater(T a, T b) {
  return b > a || b != b ? b : a;
}

template <class T>
T combine_floats(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::min:
      return lesser(a, b);
    case ReduceOp::max:
      return greater(a, b);
    case ReduceOp::product:
      return a * b;
    default:
      return a + b;
  }
}

template <class T>
T combine_integers(ReduceOp op, T a, T b) {
  // 64-bit unsigned arithmetic wraps, so its low bits are the wrapped result of T.
  using Bits = std::make_unsigned_t<T>;
  const uint64_t wide_a = static_cast<Bits>(a), wide_b = static_cast<Bits>(b);
  switch (op) {
    case ReduceOp::min:
      return lesser(a, b);
    case ReduceOp::max:
      return greater(a, b);
    case ReduceOp::product:
      return static_cast<T>(wide_a * wide_b);
    case ReduceOp::band:
      return static_cast<T>(wide_a & wide_b);
    case ReduceOp::bor:
      return static_cast<T>(wide_a | wide_b);
    case ReduceOp::bxor:
      return static_cast<T>(wide_a ^ wide_b);
    default:
      return static_cast<T>(wide_a + wide_b);
  }
}

Boolean combine_booleans(ReduceOp op, Boolean a, Boolean b) {
  if (op == ReduceOp::bxor) return {static_cast<uint8_t>(a.byte ^ b.byte)};
  const bool is_and = op == ReduceOp::min || op == ReduceOp::product || op == ReduceOp::band;
  return {static_cast<uint8_t>(is_and ? a.byte & b.byte : a.byte | b.byte)};
}

template <class T>
T reduce_element(ReduceOp op, std::span<const std::byte* const> inputs, int64_t i, Scale scale) {
  if constexpr (kIsFloat<T>) {
    using Wide = Accumulator<T>;
    auto sum = convert_number<Wide>(load_element<T>(inputs[0], i));
    for (const std::byte* input : inputs.subspan(1))
      sum = combine_floats(op, sum, convert_number<Wide>(load_element<T>(input, i)));
    return convert_number<T>(cast_one<Wide>(sum, scale));
  } else {
    if constexpr (std::is_integral_v<T>) {
      if (is_average(op, scale)) {
        WideSum<T> sum = 0;
        for (const std::byte* input : inputs) sum += load_element<T>(input, i);
        return average_of_sum<T>(sum, scale);
      }
    }
    T sum = load_element<T>(inputs[0], i);
    for (const std::byte* input : inputs.subspan(1)) {
      if constexpr (std::is_same_v<T, Boolean>)
        sum = combine_booleans(op, sum, load_element<T>(input, i));
      else
        sum = combine_integers(op, sum, load_element<T>(input, i));
    }
    return cast_one<T>(sum, scale);
  }
}

}  // namespace

void reduce_reference(DataType dtype, ReduceOp op, std::byte* output,
                      std::span<const std::byte* const> inputs, int64_t count, Scale scale) {
  TUTTI_CHECK(!inputs.empty() && scale.divisor > 0 && can_reduce(dtype, op));
  if (op == ReduceOp::average) scale.divisor *= static_cast<int64_t>(inputs.size());
  visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    for (int64_t i = 0; i < count; ++i)
      store_element(output, i, reduce_element<T>(op, inputs, i, scale));
  });
}

}  // namespace tutti
