#pragma once

// The work of one block of the reduction kernel. It compiles for the host too.

#include "tutti/kernels/cuda/pack/pack_tile.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti::cuda {

/// Most inputs, and most outputs, of one launch. The launch's parameters must stay below 4 KiB.
inline constexpr int kMostReduced = static_cast<int>(DeviceRuntime::kMostReduced);

/// outputs[j][i] = scale(op over k of inputs[k][i]), as kernels/reduce.h defines it. Each output
/// pointer may equal one input pointer.
struct ReduceTable {
  const std::byte* inputs[kMostReduced];
  std::byte* outputs[kMostReduced];
  int32_t input_count, output_count;
  int64_t count;  // elements
  DataType dtype;
  ReduceOp op;  // not average
  Scaling scaling;
};

inline constexpr int64_t reduce_tiles(int64_t count) {
  return (count + kTileElements - 1) / kTileElements;
}

/// A range of elements, and the range of indices of the outputs that receive them.
struct ReducePart {
  int64_t begin, count;
  int32_t first_output, end_output;
};

/// The type in which an element is reduced.
template <class T>
struct Reduced {
  using Type = T;
};
template <>
struct Reduced<Float16> {
  using Type = float;
};
template <>
struct Reduced<BFloat16> {
  using Type = float;
};

// A NaN on either side wins; of two zeros that differ in sign the first is kept. Integers wrap,
// except in averages, which have their own loop.
template <bool kSums, class T>
TUTTI_DEVICE T combine(ReduceOp op, T a, T b) {
  constexpr bool kIsFloating = T(1) / T(2) != T(0);
  const auto sum = [&] {
    if constexpr (kIsFloating)
      return a + b;
    else
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  };
  if constexpr (kSums) return sum();
  switch (op) {
    case ReduceOp::min:
      return b < a || b != b ? b : a;
    case ReduceOp::max:
      return a < b || b != b ? b : a;
    case ReduceOp::product:
      if constexpr (kIsFloating)
        return a * b;
      else
        return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    case ReduceOp::band:
      if constexpr (!kIsFloating) return static_cast<T>(a & b);
      break;
    case ReduceOp::bor:
      if constexpr (!kIsFloating) return static_cast<T>(a | b);
      break;
    case ReduceOp::bxor:
      if constexpr (!kIsFloating) return static_cast<T>(a ^ b);
      break;
    default:
      break;
  }
  return sum();
}

template <class T>
TUTTI_DEVICE T close_element(typename Reduced<T>::Type value, const ReduceTable& table) {
  using Wide = typename Reduced<T>::Type;
  if constexpr (Wide(1) / Wide(2) != Wide(0)) {
    value *= static_cast<Wide>(table.scaling.multiplier);  // multiplying by one changes nothing
    if constexpr (IsNarrow<T>::value)
      return narrow<T>(value);
    else
      return value;
  } else {
    if (table.scaling.is_one) return value;
    T result;
    cast_any(table.dtype, reinterpret_cast<const std::byte*>(&value), table.dtype,
             reinterpret_cast<std::byte*>(&result), table.scaling);
    return result;
  }
}

template <class T>
TUTTI_DEVICE typename Reduced<T>::Type open_element(T value) {
  if constexpr (IsNarrow<T>::value)
    return widen(value);
  else
    return value;
}

/// Reduces one thread's packs of kLanes elements of a part.
template <bool kSums, class T, int kLanes>
TUTTI_DEVICE void reduce_packs(const ReduceTable& table, const ReducePart& part, int thread,
                               int threads) {
  using Wide = typename Reduced<T>::Type;
  // Number of inputs whose loads are in flight at the same time.
  constexpr int kInputsAhead = kSums && kLanes > 1 ? 3 : 1;
  for (int64_t i = thread; i < part.count / kLanes; i += threads) {
    const int64_t at = (part.begin + i * kLanes) * static_cast<int64_t>(sizeof(T));
    const auto first = *reinterpret_cast<const Pack<T, kLanes>*>(table.inputs[0] + at);
    Wide values[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) values[lane] = open_element(first.values[lane]);
    for (int begin = 1; begin < table.input_count; begin += kInputsAhead) {
      Pack<T, kLanes> next[kInputsAhead];
      for (int k = 0; k < kInputsAhead; ++k)
        if (begin + k < table.input_count)
          next[k] = *reinterpret_cast<const Pack<T, kLanes>*>(table.inputs[begin + k] + at);
      for (int k = 0; k < kInputsAhead; ++k)
        for (int lane = 0; lane < kLanes && begin + k < table.input_count; ++lane)
          values[lane] = combine<kSums>(table.op, values[lane], open_element(next[k].values[lane]));
    }
    Pack<T, kLanes> result;
    for (int lane = 0; lane < kLanes; ++lane)
      result.values[lane] = close_element<T>(values[lane], table);
    for (int output = part.first_output; output < part.end_output; ++output)
      *reinterpret_cast<Pack<T, kLanes>*>(table.outputs[output] + at) = result;
  }
}

template <bool kSums, class T>
TUTTI_DEVICE void reduce_share(const ReduceTable& table, const ReducePart& part, int thread,
                               int threads) {
  constexpr int kLanes = 16 / static_cast<int>(sizeof(T));
  uintptr_t places = 0;
  for (int i = 0; i < table.input_count; ++i)
    places |= reinterpret_cast<uintptr_t>(table.inputs[i]);
  for (int i = 0; i < table.output_count; ++i)
    places |= reinterpret_cast<uintptr_t>(table.outputs[i]);
  ReducePart rest = part;
  if (places % 16 == 0) {  // parts begin at whole packs
    reduce_packs<kSums, T, kLanes>(table, part, thread, threads);
    rest.begin += part.count / kLanes * kLanes;
    rest.count %= kLanes;
  }
  reduce_packs<kSums, T, 1>(table, rest, thread, threads);
}

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 Uint128;

/// The type in which the integers of an average are summed, as in kernels/scaling.h.
template <class T, bool kIsSigned = (static_cast<T>(-1) < T{0}), bool kIsLong = (sizeof(T) == 8)>
struct WideSum {
  using Type = int64_t;
};
template <class T>
struct WideSum<T, false, false> {
  using Type = uint64_t;
};
template <class T>
struct WideSum<T, true, true> {
  using Type = Int128;
};
template <class T>
struct WideSum<T, false, true> {
  using Type = Uint128;
};

/// Averages integers: sums in a wide type and truncates the quotient toward zero.
template <class T>
TUTTI_DEVICE void average_share(const ReduceTable& table, const ReducePart& part, int thread,
                                int threads) {
  using Wide = typename WideSum<T>::Type;
  constexpr bool kIsSigned = static_cast<T>(-1) < T{0};
  for (int64_t i = thread; i < part.count; i += threads) {
    const int64_t at = (part.begin + i) * static_cast<int64_t>(sizeof(T));
    Wide sum = 0;
    for (int input = 0; input < table.input_count; ++input)
      sum += *reinterpret_cast<const T*>(table.inputs[input] + at);
    sum /= static_cast<Wide>(table.scaling.divisor);
    Number number{kIsSigned ? Number::integer : Number::natural, 0, 0, static_cast<uint64_t>(sum),
                  static_cast<int64_t>(sum)};
    if (table.scaling.factor != 1.0)
      number = {Number::wide, 0, to_wide(number) * table.scaling.factor, 0, 0};
    const T average = to_integer<T>(number);
    for (int output = part.first_output; output < part.end_output; ++output)
      *reinterpret_cast<T*>(table.outputs[output] + at) = average;
  }
}

/// Reduces one thread's share of a part with elements of type T. The part begins at a multiple of
/// 16 elements. All addresses are aligned to the element size.
template <class T>
TUTTI_DEVICE void reduce_part_of(const ReduceTable& table, const ReducePart& part, int thread,
                                 int threads) {
  using Wide = typename Reduced<T>::Type;
  if constexpr (Wide(1) / Wide(2) != Wide(0))
    if (table.op == ReduceOp::sum) return reduce_share<true, T>(table, part, thread, threads);
  if constexpr (Wide(1) / Wide(2) == Wide(0))
    if (table.op == ReduceOp::sum && table.scaling.divisor > 1)
      return average_share<T>(table, part, thread, threads);
  reduce_share<false, T>(table, part, thread, threads);
}

/// Reduces one thread's share of a part. The elements have the table's dtype. Bools are reduced
/// as bytes.
TUTTI_DEVICE void reduce_part(const ReduceTable& table, const ReducePart& part, int thread,
                              int threads) {
  switch (table.dtype) {
    case DataType::f64:
      return reduce_part_of<double>(table, part, thread, threads);
    case DataType::f32:
      return reduce_part_of<float>(table, part, thread, threads);
    case DataType::f16:
      return reduce_part_of<Float16>(table, part, thread, threads);
    case DataType::bf16:
      return reduce_part_of<BFloat16>(table, part, thread, threads);
    case DataType::i8:
      return reduce_part_of<int8_t>(table, part, thread, threads);
    case DataType::i16:
      return reduce_part_of<int16_t>(table, part, thread, threads);
    case DataType::i32:
      return reduce_part_of<int32_t>(table, part, thread, threads);
    case DataType::i64:
      return reduce_part_of<int64_t>(table, part, thread, threads);
    case DataType::u16:
      return reduce_part_of<uint16_t>(table, part, thread, threads);
    case DataType::u32:
      return reduce_part_of<uint32_t>(table, part, thread, threads);
    case DataType::u64:
      return reduce_part_of<uint64_t>(table, part, thread, threads);
    case DataType::u8:
    case DataType::boolean:
    case DataType::raw:  // never reduced
      return reduce_part_of<uint8_t>(table, part, thread, threads);
  }
}

inline constexpr ReducePart part_of_tile(const ReduceTable& table, int64_t tile) {
  const int64_t begin = tile * kTileElements;
  const int64_t left = table.count - begin;
  return {begin, left < kTileElements ? left : kTileElements, 0, table.output_count};
}

/// Does one thread's share of tile number `tile`.
TUTTI_DEVICE void reduce_tile(const ReduceTable& table, int64_t tile, int thread, int threads) {
  reduce_part(table, part_of_tile(table, tile), thread, threads);
}

/// Makes the parameters of a launch. Bools are reduced bit by bit as bytes, and are never scaled.
inline ReduceTable make_reduce_table(const DeviceReduction& reduction) {
  ReduceTable table;
  table.input_count = static_cast<int32_t>(reduction.inputs.size());
  table.output_count = static_cast<int32_t>(reduction.outputs.size());
  for (int32_t i = 0; i < table.input_count; ++i)
    table.inputs[i] = reduction.inputs[static_cast<size_t>(i)];
  for (int32_t i = 0; i < table.output_count; ++i)
    table.outputs[i] = reduction.outputs[static_cast<size_t>(i)];
  table.count = reduction.count;
  table.dtype = reduction.dtype;
  table.op = reduction.op;
  auto scale = reduction.scale;
  if (reduction.dtype == DataType::boolean) {
    scale = {};
    const bool is_and = reduction.op == ReduceOp::min || reduction.op == ReduceOp::product ||
                        reduction.op == ReduceOp::band;
    if (reduction.op != ReduceOp::bxor) table.op = is_and ? ReduceOp::band : ReduceOp::bor;
  }
  table.scaling = {scale.factor, scale.factor / static_cast<double>(scale.divisor), scale.divisor,
                   scale.is_one()};
  return table;
}

}  // namespace tutti::cuda
