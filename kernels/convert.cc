// This file is compiled once per instruction set by foreach_target.h. Each call of cast() or
// scale() chooses the instruction set at run time.
#include "tutti/kernels/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/convert.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tutti/kernels/lanes-inl.h"
//
#include <cstring>

#include "tutti/base/check.h"
#include "tutti/kernels/convert.h"
#include "tutti/kernels/element.h"
#include "tutti/kernels/scaling.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::HWY_NAMESPACE {

// Casts between f32, f16 and bf16, computed in f32.
template <class From, class To>
struct NarrowCast {
  using D = hn::ScalableTag<float>;
  static HWY_INLINE hn::VFromD<D> Load(const From* data) { return Lanes<From>::Load(data); }
  static HWY_INLINE void Store(hn::VFromD<D> value, To* data) { Lanes<To>::Store(value, data); }
};

// Casts between f64 and f32, computed in f64.
template <class From, class To>
struct WideCast {
  using D = hn::ScalableTag<double>;
  using DFloat = hn::Rebind<float, D>;
  static HWY_INLINE hn::VFromD<D> Load(const From* data) {
    if constexpr (std::is_same_v<From, double>)
      return hn::LoadU(D(), data);
    else
      return hn::PromoteTo(D(), hn::LoadU(DFloat(), data));
  }
  static HWY_INLINE void Store(hn::VFromD<D> value, To* data) {
    if constexpr (std::is_same_v<To, double>)
      hn::StoreU(value, D(), data);
    else
      hn::StoreU(hn::DemoteTo(DFloat(), value), DFloat(), data);
  }
};

template <template <class, class> class Cast, class From, class To>
void CastRange(const std::byte* input, std::byte* output, int64_t count, Scale scale) {
  using C = Cast<From, To>;
  const typename C::D d;
  const auto width = static_cast<int64_t>(hn::Lanes(d));
  const auto* from = reinterpret_cast<const From*>(input);
  auto* to = reinterpret_cast<To*>(output);
  // Multiplying by one changes nothing, so one loop serves both scaled and unscaled casts.
  const auto by = hn::Set(d, static_cast<hn::TFromD<typename C::D>>(multiplier(scale)));
  int64_t i = 0;
  for (; i + width <= count; i += width) C::Store(hn::Mul(C::Load(from + i), by), to + i);
  if (i == count) return;
  // Fewer elements than one vector remain. They are computed on zero-padded copies of vector
  // length.
  constexpr size_t kMaxLanes = hn::MaxLanes(typename C::D());
  const auto rest = static_cast<size_t>(count - i);
  HWY_ALIGN From last_from[kMaxLanes] = {};
  HWY_ALIGN To last_to[kMaxLanes];
  std::memcpy(last_from, input + i * static_cast<int64_t>(sizeof(From)), rest * sizeof(From));
  C::Store(hn::Mul(C::Load(last_from), by), last_to);
  std::memcpy(output + i * static_cast<int64_t>(sizeof(To)), last_to, rest * sizeof(To));
}

// Without vector instructions Highway turns overflow from f64 to f32 into the largest finite value.
// So those targets have no wide cast.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
constexpr bool kHasWideCast = false;
#else
constexpr bool kHasWideCast = true;
#endif

template <class T>
constexpr bool kInFloatLanes =
    std::is_same_v<T, float> || std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

// Returns false for a pair of types without a vectorised loop.
bool CastOnTarget(DataType from, const std::byte* input, DataType to, std::byte* output,
                  int64_t count, Scale scale) {
  return visit_dtype(from, [&]<class From>(std::type_identity<From>) {
    return visit_dtype(to, [&]<class To>(std::type_identity<To>) {
      if constexpr (kInFloatLanes<From> && kInFloatLanes<To>)
        CastRange<NarrowCast, From, To>(input, output, count, scale);
      else if constexpr (kHasWideCast && std::is_floating_point_v<From> &&
                         std::is_floating_point_v<To>)
        CastRange<WideCast, From, To>(input, output, count, scale);
      else
        return false;
      return true;
    });
  });
}

}  // namespace tutti::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti {

HWY_EXPORT(CastOnTarget);

void cast(DataType from, const std::byte* input, DataType to, std::byte* output, int64_t count,
          Scale scale) {
  TUTTI_CHECK(scale.divisor > 0);
  if (from == to && (scale.is_one() || from == DataType::boolean || from == DataType::raw)) {
    if (input != output && count > 0)
      std::memcpy(output, input, static_cast<size_t>(count * size_of(from)));
    return;
  }
  if (HWY_DYNAMIC_DISPATCH(CastOnTarget)(from, input, to, output, count, scale)) return;
  // Gradients are never cast between floats and integers, so the plain loop is fast enough there.
  cast_reference(from, input, to, output, count, scale);
}

void scale(DataType dtype, std::byte* data, int64_t count, Scale scale) {
  cast(dtype, data, dtype, data, count, scale);
}

}  // namespace tutti
#endif
