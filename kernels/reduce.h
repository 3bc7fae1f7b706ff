#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/packing.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// Whether `op` means something on `dtype`: sum, average, min, max and product on all numbers;
/// band, bor and bxor on integers and bool; on bool also min and product (and), max and sum (or).
/// On raw bytes nothing does.
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

/// Whether this op under this scale is an average: only averages have a divisor.
constexpr bool is_average(ReduceOp op, Scale scale) noexcept {
  return op == ReduceOp::average || (op == ReduceOp::sum && scale.divisor > 1);
}

/// Where reduce() leaves its result.
enum class Destination : uint8_t {
  by_size,  // memory, if the result is too large to be found in a cache afterwards
  cache,    // it is read again soon
  memory    // past the caches where that is possible: they keep what they hold, and the bus carries
            // each byte of the result once, not twice
};

/// Which elements reduce() visits first in sums of two inputs; the result is the same. Prefetchers
/// go on beyond the last ones, so two ranks that write neighbouring parts of memory begin where the
/// parts meet: else the one takes lines from the other that it does not need.
enum class Order : uint8_t { ascending, descending };

/// output[i] = scale(op over j of inputs[j][i]), for `count` elements, j in ascending order.
///
/// 16-bit floats accumulate in f32, f32 in f32, f64 in f64; the result is scaled, then rounded once
/// to nearest even. `average` is `sum` whose scale.divisor is multiplied by inputs.size(). Integers
/// wrap on overflow, except in an average, which is any sum with a divisor: it is summed in a wider
/// type and its quotient is cut toward zero, so that no average of integers overflows. A NaN in
/// any input makes min and max NaN; of two zeros that differ in sign they keep the first. NaN stays
/// NaN and denormals are kept everywhere; a sum beyond the largest finite value is infinite.
/// `output` may be the same pointer as any one input, and must not overlap otherwise. At least one
/// input. Vectorised with run-time dispatch; equal to the bit to reduce_reference. What goes past
/// the caches (sums and averages of floats that are not in place) is ordered like any other store
/// for whoever reads it next.
void reduce(DataType dtype, ReduceOp op, std::byte* output,
            std::span<const std::byte* const> inputs, int64_t count, Scale scale = {},
            Destination destination = Destination::by_size, Order order = Order::ascending);

/// The same into several outputs at once, each of which may be the same pointer as one input.
void reduce(DataType dtype, ReduceOp op, std::span<std::byte* const> outputs,
            std::span<const std::byte* const> inputs, int64_t count, Scale scale = {},
            Destination destination = Destination::by_size, Order order = Order::ascending);

/// reduce() with Destination::cache for one dtype, op (not average) and scale, chosen ahead: for
/// who waits for data and has work to do the moment it comes.
class Reducer {
 public:
  Reducer(DataType dtype, ReduceOp op, Scale scale);
  void operator()(std::span<std::byte* const> outputs, std::span<const std::byte* const> inputs,
                  int64_t count, Order order = Order::ascending) const;

  /// Elements [begin, end), and which of them come first.
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
