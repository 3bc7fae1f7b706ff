// This file is compiled once per instruction set by foreach_target.h. Each call of reduce() chooses
// the instruction set at run time.
#include "tutti/kernels/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/reduce.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/lanes-inl.h"
//
#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tutti/base/check.h"
#include "tutti/kernels/copy.h"
#include "tutti/kernels/element.h"
#include "tutti/kernels/reduce.h"
#include "tutti/kernels/scaling.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::HWY_NAMESPACE {

using Inputs = std::span<const std::byte* const>;
using Outputs = std::span<std::byte* const>;

template <class T>
HWY_INLINE T* At(std::byte* output, int64_t i) {
  return reinterpret_cast<T*>(output) + i;
}

// The combining step of each op. As in the reference, a NaN on either side wins in min and max. Of
// two zeros that differ in sign, the first is kept.
struct Sum {
  template <class D, class V>
  static HWY_INLINE V Combine(D, V a, V b) {
    return hn::Add(a, b);
  }
};

template <class D, class V, class Mask>
HWY_INLINE V SelectSecond(D, V a, V b, Mask second_is_better) {
  if constexpr (hwy::IsFloat<hn::TFromD<D>>())
    second_is_better = hn::Or(second_is_better, hn::IsNaN(b));
  return hn::IfThenElse(second_is_better, b, a);
}
struct Min {
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V a, V b) {
    return SelectSecond(d, a, b, hn::Lt(b, a));
  }
};
struct Max {
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V a, V b) {
    return SelectSecond(d, a, b, hn::Lt(a, b));
  }
};

struct Product {
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>() || sizeof(hn::TFromD<D>) == 2 ||
                  sizeof(hn::TFromD<D>) == 4) {
      return hn::Mul(a, b);
#if HWY_TARGET == HWY_SCALAR
    } else {
      const auto wide = static_cast<uint64_t>(hn::GetLane(a)) * hn::GetLane(b);
      return hn::Set(d, static_cast<hn::TFromD<D>>(wide));
    }
#else
    } else if constexpr (sizeof(hn::TFromD<D>) == 1) {
      // Multiplies even and odd bytes separately, as 16-bit products.
      const hn::RepartitionToWide<D> wide;
      const auto low = hn::Set(wide, 0xff);
      const auto even = hn::And(hn::Mul(hn::BitCast(wide, a), hn::BitCast(wide, b)), low);
      const auto odd =
          hn::Mul(hn::ShiftRight<8>(hn::BitCast(wide, a)), hn::ShiftRight<8>(hn::BitCast(wide, b)));
      return hn::BitCast(d, hn::Or(even, hn::ShiftLeft<8>(odd)));
    } else {
      // Computes the low half of the 128-bit product from 32-bit halves.
      const hn::RepartitionToNarrow<D> narrow;
      const auto a32 = hn::BitCast(narrow, a), b32 = hn::BitCast(narrow, b);
      const auto a_high = hn::BitCast(narrow, hn::ShiftRight<32>(a));
      const auto b_high = hn::BitCast(narrow, hn::ShiftRight<32>(b));
      const auto cross = hn::Add(hn::MulEven(a_high, b32), hn::MulEven(a32, b_high));
      return hn::Add(hn::MulEven(a32, b32), hn::ShiftLeft<32>(cross));
    }
#endif
  }
};
struct And {
  template <class D, class V>
  static HWY_INLINE V Combine(D, V a, V b) {
    return hn::And(a, b);
  }
};
struct Or {
  template <class D, class V>
  static HWY_INLINE V Combine(D, V a, V b) {
    return hn::Or(a, b);
  }
};

struct Xor {
  template <class D, class V>
  static HWY_INLINE V Combine(D, V a, V b) {
    return hn::Xor(a, b);
  }
};

// Reduces four vectors at element i over all inputs in registers, and stores them once per output.
template <class T, class Op, class To, class From>
HWY_INLINE void ReduceFour(const To& outputs, const From& inputs, int64_t i,
                           typename Lanes<T>::Lane multiplier, bool is_scaled) {
  using L = Lanes<T>;
  const typename L::D d;
  const auto width = 2 * static_cast<int64_t>(hn::Lanes(d));
  const auto at = [&](size_t j, int pair) {
    return reinterpret_cast<const T*>(inputs[j]) + i + pair * width;
  };
  typename L::V a, b, c, e;
  L::LoadTwo(at(0, 0), a, b);
  L::LoadTwo(at(0, 1), c, e);
  for (size_t j = 1; j < inputs.size(); ++j) {
    typename L::V other_a, other_b;
    L::LoadTwo(at(j, 0), other_a, other_b);
    a = Op::Combine(d, a, other_a);
    b = Op::Combine(d, b, other_b);
    L::LoadTwo(at(j, 1), other_a, other_b);
    c = Op::Combine(d, c, other_a);
    e = Op::Combine(d, e, other_b);
  }
  if constexpr (kIsFloat<T>) {
    if (is_scaled) {
      const auto m = hn::Set(d, multiplier);
      a = hn::Mul(a, m), b = hn::Mul(b, m), c = hn::Mul(c, m), e = hn::Mul(e, m);
    }
  }
  for (std::byte* output : outputs) {
    L::StoreTwo(a, b, At<T>(output, i));
    L::StoreTwo(c, e, At<T>(output, i + width));
  }
}

template <class T, class Op, class To, class From>
HWY_INLINE void ReduceVector(const To& outputs, const From& inputs, int64_t i,
                             typename Lanes<T>::Lane multiplier, bool is_scaled) {
  using L = Lanes<T>;
  const typename L::D d;
  const auto at = [&](size_t j) { return L::Load(reinterpret_cast<const T*>(inputs[j]) + i); };
  auto value = at(0);
  for (size_t j = 1; j < inputs.size(); ++j) value = Op::Combine(d, value, at(j));
  if constexpr (kIsFloat<T>) {
    if (is_scaled) value = hn::Mul(value, hn::Set(d, multiplier));
  }
  for (std::byte* output : outputs) L::Store(value, At<T>(output, i));
}

// Reduces the last elements, fewer than a vector, on zero-padded copies of vector length.
template <class T, class Op>
HWY_NOINLINE void ReduceTail(Outputs outputs, Inputs inputs, int64_t i, int64_t end,
                             typename Lanes<T>::Lane multiplier, bool is_scaled) {
  using L = Lanes<T>;
  const typename L::D d;
  const size_t bytes = static_cast<size_t>(end - i) * sizeof(T);
  HWY_ALIGN T part[hn::MaxLanes(typename L::D())] = {};
  const auto load = [&](size_t j) {
    std::memcpy(part, inputs[j] + i * static_cast<int64_t>(sizeof(T)), bytes);
    return L::Load(part);
  };
  auto value = load(0);
  for (size_t j = 1; j < inputs.size(); ++j) value = Op::Combine(d, value, load(j));
  if constexpr (kIsFloat<T>) {
    if (is_scaled) value = hn::Mul(value, hn::Set(d, multiplier));
  }
  L::Store(value, part);
  for (std::byte* output : outputs) std::memcpy(At<T>(output, i), part, bytes);
}

using Elements = Reducer::Elements;

// Containers of fixed size give loops without inner branches.
template <class T, class Op, class To, class From>
HWY_INLINE void ReduceLoop(const To& outputs, const From& inputs, const Elements& elements,
                           Scale scale) {
  using Lane = typename Lanes<T>::Lane;
  const auto width = static_cast<int64_t>(hn::Lanes(typename Lanes<T>::D()));
  const auto by = static_cast<Lane>(multiplier(scale));
  const bool is_scaled = !scale.is_one();
  const auto [begin, end, order] = elements;
  const int64_t step = 4 * width;
  int64_t i = begin;
  // The direction affects speed only in loops of fixed size. All other loops are too slow for it to
  // make a difference.
  if (!std::is_same_v<From, Inputs> && order == Order::descending) {
    const int64_t middle = begin + (end - begin) / step * step;
    for (i = middle - step; i >= begin; i -= step)
      ReduceFour<T, Op>(outputs, inputs, i, by, is_scaled);
    i = middle;
  }
  for (; i + step <= end; i += step) ReduceFour<T, Op>(outputs, inputs, i, by, is_scaled);
  for (; i + width <= end; i += width) ReduceVector<T, Op>(outputs, inputs, i, by, is_scaled);
  if (i < end) ReduceTail<T, Op>(outputs, inputs, i, end, by, is_scaled);
}

template <class T, class Op>
void ReduceRange(Outputs outputs, Inputs inputs, const Elements& elements, Scale scale) {
  if constexpr (kIsFloat<T> && std::is_same_v<Op, Sum>) {
    // Sums of two ranks get loops of fixed size. In a short loop over the first-level cache, the
    // branches of a general loop would take noticeable time.
    if (inputs.size() == 2 && outputs.size() <= 2) {
      const std::array<const std::byte*, 2> from{inputs[0], inputs[1]};
      if (outputs.size() == 1)
        return ReduceLoop<T, Op>(std::array{outputs[0]}, from, elements, scale);
      return ReduceLoop<T, Op>(std::array{outputs[0], outputs[1]}, from, elements, scale);
    }
  }
  ReduceLoop<T, Op>(outputs, inputs, elements, scale);
}

constexpr int64_t kLine = 64;

// True if the target has stores that bypass the caches.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
constexpr bool kHasStream = false;
#else
constexpr bool kHasStream = true;
#endif

// Number of vectors that StreamSum handles in one step. It is one if a vector fills a cache line,
// else two. Several lines of each input per step are 10 % slower.
template <class T>
constexpr int64_t kStreamVectors =
    std::is_same_v<typename Lanes<T>::Lane, T>&& HWY_LANES(T) * sizeof(T) >= kLine ? 1 : 2;

// Sums all inputs at element i and stores the result past the caches to each output.
template <class T>
HWY_INLINE void StreamSum(Outputs outputs, Inputs inputs, int64_t i,
                          typename Lanes<T>::Lane multiplier, bool is_scaled) {
  using L = Lanes<T>;
  const typename L::D d;
  // Prefetches far ahead into the second-level cache, and closer ahead into the first. The outer
  // caches are skipped, because data that does not fit in them is read only once.
  constexpr int64_t kLineElements = kLine / static_cast<int64_t>(sizeof(T));
  constexpr int64_t kFar = 24 * kLineElements, kNear = 6 * kLineElements;
  for (const std::byte* input : inputs) {
    const auto* next = reinterpret_cast<const T*>(input) + i;
    __builtin_prefetch(next + kFar, 0, 2);
    __builtin_prefetch(next + kNear, 0, 0);
  }
  const auto at = [&](size_t j) { return reinterpret_cast<const T*>(inputs[j]) + i; };
  const auto by = hn::Set(d, multiplier);
  if constexpr (kStreamVectors<T> == 1) {
    auto sum = L::Load(at(0));
    for (size_t j = 1; j < inputs.size(); ++j) sum = Sum::Combine(d, sum, L::Load(at(j)));
    if (is_scaled) sum = hn::Mul(sum, by);
    for (std::byte* output : outputs) hn::Stream(sum, d, At<T>(output, i));
  } else {
    typename L::V a, b;
    L::LoadTwo(at(0), a, b);
    for (size_t j = 1; j < inputs.size(); ++j) {
      typename L::V other_a, other_b;
      L::LoadTwo(at(j), other_a, other_b);
      a = Sum::Combine(d, a, other_a);
      b = Sum::Combine(d, b, other_b);
    }
    if (is_scaled) a = hn::Mul(a, by), b = hn::Mul(b, by);
    for (std::byte* output : outputs) L::StreamTwo(a, b, At<T>(output, i));
  }
}

// Sums past the caches. Returns false and does nothing if that is not possible.
template <class T>
bool StreamSums(Outputs outputs, Inputs inputs, int64_t count, Scale scale) {
  if constexpr (kHasStream && kIsFloat<T>) {
    constexpr int64_t kSize = sizeof(T);
    const auto past = [](const std::byte* output) {
      return static_cast<int64_t>(reinterpret_cast<uintptr_t>(output) % kLine);
    };
    const auto past_line = past(outputs[0]);
    if (past_line % kSize != 0) return false;
    for (const std::byte* output : outputs)
      if (past(output) != past_line) return false;
    const auto by = static_cast<typename Lanes<T>::Lane>(multiplier(scale));
    const bool is_scaled = !scale.is_one();
    const auto step = kStreamVectors<T> * static_cast<int64_t>(hn::Lanes(typename Lanes<T>::D()));
    int64_t i = std::min(count, (kLine - past_line) % kLine / kSize);
    ReduceRange<T, Sum>(outputs, inputs, {0, i}, scale);
    for (; i + step <= count; i += step) StreamSum<T>(outputs, inputs, i, by, is_scaled);
    hwy::FlushStream();
    ReduceRange<T, Sum>(outputs, inputs, {i, count}, scale);
    return true;
  }
  return false;
}

bool StreamSumsOnTarget(DataType dtype, Outputs outputs, Inputs inputs, int64_t count,
                        Scale scale) {
  return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    return StreamSums<T>(outputs, inputs, count, scale);
  });
}

// Averages integers in pieces that fit in the first-level cache. The sums of a piece have a wide
// type; they are then divided.
template <class T>
void AverageIntegers(Outputs outputs, Inputs inputs, const Elements& elements, Scale scale) {
  constexpr int64_t kPiece = 512;
  WideSum<T> sums[kPiece];
  for (int64_t begin = elements.begin; begin < elements.end; begin += kPiece) {
    const int64_t count = std::min(kPiece, elements.end - begin);
    std::fill_n(sums, count, 0);
    for (const std::byte* input : inputs)
      for (int64_t i = 0; i < count; ++i) sums[i] += load_element<T>(input, begin + i);
    for (int64_t i = 0; i < count; ++i) {
      const T average = average_of_sum<T>(sums[i], scale);
      for (std::byte* output : outputs) store_element<T>(output, begin + i, average);
    }
  }
}

// Reduces bitwise, regardless of the type.
template <class T, class Op>
void ReduceBytes(Outputs outputs, Inputs inputs, const Elements& elements, Scale) {
  const auto size = static_cast<int64_t>(sizeof(T));
  ReduceRange<uint8_t, Op>(outputs, inputs,
                           {elements.begin * size, elements.end * size, elements.order}, {});
}

// Sum and product wrap, so signed types share the unsigned loops.
template <class T>
Reducer::Loop* LoopOfNumbers(ReduceOp op) {
  using Bits =
      typename std::conditional_t<kIsFloat<T>, std::type_identity<T>, std::make_unsigned<T>>::type;
  switch (op) {
    case ReduceOp::min:
      return ReduceRange<T, Min>;
    case ReduceOp::max:
      return ReduceRange<T, Max>;
    case ReduceOp::product:
      return ReduceRange<Bits, Product>;
    case ReduceOp::band:
      return ReduceBytes<T, And>;
    case ReduceOp::bor:
      return ReduceBytes<T, Or>;
    case ReduceOp::bxor:
      return ReduceBytes<T, Xor>;
    default:
      return ReduceRange<Bits, Sum>;
  }
}

Reducer::Loop* LoopOnTarget(DataType dtype, ReduceOp op, bool is_average) {
  return visit_dtype(dtype, [&]<class T>(std::type_identity<T>) -> Reducer::Loop* {
    if constexpr (std::is_integral_v<T>)
      if (is_average) return AverageIntegers<T>;
    if constexpr (std::is_same_v<T, Boolean>) {
      if (op == ReduceOp::bxor) return ReduceRange<uint8_t, Xor>;
      const bool is_and = op == ReduceOp::min || op == ReduceOp::product || op == ReduceOp::band;
      return is_and ? ReduceRange<uint8_t, And> : ReduceRange<uint8_t, Or>;
    } else {
      return LoopOfNumbers<T>(op);
    }
  });
}

}  // namespace tutti::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti {

HWY_EXPORT(LoopOnTarget);
HWY_EXPORT(StreamSumsOnTarget);

Reducer::Reducer(DataType dtype, ReduceOp op, Scale scale)
    : dtype_(dtype),
      scale_(scale),
      is_scaled_apart_(!is_float(dtype) && !scale.is_one() && !is_average(op, scale)) {
  TUTTI_CHECK(scale.divisor > 0 && can_reduce(dtype, op) && op != ReduceOp::average);
  loop_ = HWY_DYNAMIC_DISPATCH(LoopOnTarget)(dtype, op, is_average(op, scale));
}

void Reducer::operator()(std::span<std::byte* const> outputs,
                         std::span<const std::byte* const> inputs, int64_t count,
                         Order order) const {
  if (!is_scaled_apart_) return loop_(outputs, inputs, {0, count, order}, scale_);
  // Integers are scaled in a second pass, over a piece that is still in the first-level cache.
  const int64_t width = size_of(dtype_), piece = 8192 / width;
  for (int64_t begin = 0; begin < count; begin += piece) {
    const int64_t end = std::min(begin + piece, count);
    loop_(outputs, inputs, {begin, end, order}, {});
    for (std::byte* output : outputs)
      tutti::scale(dtype_, output + begin * width, end - begin, scale_);
  }
}

void reduce(DataType dtype, ReduceOp op, std::span<std::byte* const> outputs,
            std::span<const std::byte* const> inputs, int64_t count, Scale scale,
            Destination destination, Order order) {
  TUTTI_CHECK(!inputs.empty() && !outputs.empty() && can_reduce(dtype, op));
  if (op == ReduceOp::average) {
    op = ReduceOp::sum;
    scale.divisor *= static_cast<int64_t>(inputs.size());
  }
  const Reducer reducer(dtype, op, scale);
  if (destination == Destination::by_size && count * size_of(dtype) >= kBeyondCachesBytes)
    destination = Destination::memory;
  // An in-place output has its lines in the cache already.
  if (destination == Destination::memory && op == ReduceOp::sum &&
      std::find_first_of(inputs.begin(), inputs.end(), outputs.begin(), outputs.end()) ==
          inputs.end() &&
      HWY_DYNAMIC_DISPATCH(StreamSumsOnTarget)(dtype, outputs, inputs, count, scale))
    return;
  reducer(outputs, inputs, count, order);
}

void reduce(DataType dtype, ReduceOp op, std::byte* output,
            std::span<const std::byte* const> inputs, int64_t count, Scale scale,
            Destination destination, Order order) {
  reduce(dtype, op, {&output, 1}, inputs, count, scale, destination, order);
}

}  // namespace tutti
#endif
