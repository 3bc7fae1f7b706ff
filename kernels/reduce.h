#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/packing.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// Returns whether `op` is defined for `dtype`. Sum, average, min, max and product are defined for
/// all numbers; band, bor and bxor for integers and bool. For bool, min and product mean "and", max
/// and sum mean "or". Raw bytes have no ops.
constexpr bool can_reduce(DataType dtype, ReduceOp op) noexcept {
  if (dtype == DataType::raw) return false;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::min:
    case ReduceOp::max:
    case ReduceOp::product:
      return true;
    case ReduceOp::average:
      return dtype != DataType::boolean;
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      return !is_float(dtype);
  }
  return false;
}

/// Returns whether this op under this scale is an average. Only averages have a divisor.
constexpr bool is_average(ReduceOp op, Scale scale) noexcept {
  return op == ReduceOp::average || (op == ReduceOp::sum && scale.divisor > 1);
}

/// The destination of reduce()'s result.
enum class Destination : uint8_t {
  by_size,  // memory if the result is too large to stay in a cache, else cache
  cache,    // the result is read again soon
  /// The result is written past the caches where possible. The caches keep their contents, and the
  /// memory bus carries each byte of the result once instead of twice.
  memory
};

/// Direction in which reduce() visits the elements of a sum of two inputs; the result is the same.
/// Hardware prefetchers read beyond the last element. So two ranks that write neighbouring parts of
/// memory both begin where the parts meet; otherwise one would take cache lines from the other
/// without using them.
enum class Order : uint8_t { ascending, descending };

/// output[i] = scale(op over j of inputs[j][i]), for `count` elements, j in ascending order.
///
/// 16-bit floats and f32 accumulate in f32, and f64 in f64. The result is scaled and then rounded
/// once to nearest even. `average` is `sum` with scale.divisor multiplied by inputs.size().
/// Integers wrap on overflow, except in an average, which is any sum with a divisor. An average of
/// integers never overflows: it is summed in a wider type, and its quotient is truncated toward
/// zero. A NaN in any input makes min and max NaN. Of two zeros that differ in sign, min and max
/// keep the first. NaN stays NaN, denormals are kept, and a sum beyond the largest finite value is
/// infinite.
///
/// There must be at least one input. `output` may equal the pointer of any one input and must not
/// overlap any input otherwise. The loops are vectorised with run-time dispatch and equal
/// reduce_reference() to the bit. Results that go past the caches (sums and averages of floats that
/// are not in place) are followed by a store fence.
void reduce(DataType dtype, ReduceOp op, std::byte* output,
            std::span<const std::byte* const> inputs, int64_t count, Scale scale = {},
            Destination destination = Destination::by_size, Order order = Order::ascending);

/// Writes the same result into several outputs. Each output pointer may equal one input pointer.
void reduce(DataType dtype, ReduceOp op, std::span<std::byte* const> outputs,
            std::span<const std::byte* const> inputs, int64_t count, Scale scale = {},
            Destination destination = Destination::by_size, Order order = Order::ascending);

/// reduce() with Destination::cache for one dtype, op (not average) and scale, whose loop is chosen
/// in advance. It serves callers that wait for data and must reduce it the moment it arrives.
class Reducer {
 public:
  Reducer(DataType dtype, ReduceOp op, Scale scale);
  void operator()(std::span<std::byte* const> outputs, std::span<const std::byte* const> inputs,
                  int64_t count, Order order = Order::ascending) const;

  /// Elements [begin, end), and the direction in which the loop visits them.
  struct Elements {
    int64_t begin = 0, end = 0;
    Order order = Order::ascending;
  };
  using Loop = void(std::span<std::byte* const> outputs, std::span<const std::byte* const> inputs,
                    const Elements& elements, Scale scale);

 private:
  DataType dtype_;
  Scale scale_;
  bool is_scaled_apart_;
  Loop* loop_;
};

/// The plain loop that defines reduce().
void reduce_reference(DataType dtype, ReduceOp op, std::byte* output,
                      std::span<const std::byte* const> inputs, int64_t count, Scale scale = {});

}  // namespace tutti
