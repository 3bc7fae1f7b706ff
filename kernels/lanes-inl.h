// Loads and stores element types as vectors of the type in which they are computed. This file is
// included once per instruction set, so it has a toggle instead of an include guard.
#if defined(TUTTI_KERNELS_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_LANES_INL_H
#undef TUTTI_KERNELS_LANES_INL_H
#else
#define TUTTI_KERNELS_LANES_INL_H
#endif

#include <hwy/highway.h>

#include "tutti/tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The processor's f16 conversions round to nearest even and keep denormals. Highway's emulation,
// used on other targets, truncates.
#if (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3) && !defined(HWY_DISABLE_F16C)
#undef TUTTI_NATIVE_F16
#define TUTTI_NATIVE_F16 1
#else
#undef TUTTI_NATIVE_F16
#define TUTTI_NATIVE_F16 0
#endif

// Converts a 16-bit float type, as integer bits, to f32 lanes (tag `d`) and back. The conversion to
// bf16 is our own because that of Highway 1.0.3 truncates.
template <class T>
struct Format;

template <>
struct Format<BFloat16> {
  template <class D, class Bits>
  static HWY_INLINE hn::VFromD<D> Widen(D d, Bits bits16) {
    const hn::Rebind<uint32_t, D> du;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits16)));
  }

  template <class D, class V = hn::VFromD<D>>
  static HWY_INLINE auto Narrow(D d, V value) {
    const hn::Rebind<int32_t, D> di;
    const hn::Rebind<uint16_t, D> du16;
    return hn::DemoteTo(du16, hn::BitCast(di, hn::ShiftRight<16>(Round(d, value))));
  }

#if HWY_TARGET != HWY_SCALAR
  // Elements at even indices form one vector and those at odd indices the other, so no element
  // crosses lanes.
  template <class D, class Bits, class V>
  static HWY_INLINE void WidenTwo(D d, Bits bits16, V& even, V& odd) {
    const hn::Rebind<uint32_t, D> du;
    const auto bits = hn::BitCast(du, bits16);
    even = hn::BitCast(d, hn::ShiftLeft<16>(bits));
    odd = hn::BitCast(d, hn::And(bits, hn::Set(du, 0xffff0000)));
  }

  template <class D, class V = hn::VFromD<D>>
  static HWY_INLINE auto NarrowTwo(D d, V even, V odd) {
    const hn::Repartition<uint16_t, D> du16;
    return hn::OddEven(hn::BitCast(du16, Round(d, odd)),
                       hn::BitCast(du16, hn::ShiftRight<16>(Round(d, even))));
  }
#endif

 private:
  // Rounds to bf16; the result is in the upper 16 bits.
  template <class D, class V>
  static HWY_INLINE auto Round(D, V value) {
    const hn::Rebind<uint32_t, D> du;
    const auto bits = hn::BitCast(du, value);
    const auto is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), is_odd);
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
    return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet, rounded);
  }
};

template <>
struct Format<Float16> {
#if TUTTI_NATIVE_F16
  template <class D, class Bits>
  static HWY_INLINE hn::VFromD<D> Widen(D d, Bits bits16) {
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(d, hn::BitCast(dh, bits16));
  }

  template <class D, class V = hn::VFromD<D>>
  static HWY_INLINE auto Narrow(D, V value) {
    const hn::Rebind<hwy::float16_t, D> dh;
    const hn::Rebind<uint16_t, D> du16;
    return hn::BitCast(du16, hn::DemoteTo(dh, value));
  }
#else
  // Does the arithmetic of to_float(Float16): computes every case and selects the right one.
  template <class D, class Bits>
  static HWY_INLINE hn::VFromD<D> Widen(D d, Bits bits16) {
    const hn::Rebind<uint32_t, D> du;
    const auto bits = hn::PromoteTo(du, bits16);
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)));
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7fff));
    const auto normal =
        hn::Add(hn::ShiftLeft<13>(magnitude), hn::Set(du, uint32_t{127 - 15} << 23));
    const auto special = hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(du, 0x7f800000));
    // The mantissa, in units of 2^-24, becomes the low bits of 0.5. Subtracting 0.5 leaves its
    // value.
    const auto half = hn::Set(d, 0.5f);
    const auto tiny =
        hn::BitCast(du, hn::Sub(hn::BitCast(d, hn::Or(magnitude, hn::BitCast(du, half))), half));
    const hn::Rebind<int32_t, D> di;
    const auto signed_magnitude = hn::BitCast(di, magnitude);
    const auto is_tiny = hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, 0x0400)));
    const auto is_special = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x7bff)));
    const auto finite = hn::IfThenElse(is_tiny, tiny, normal);
    return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_special, special, finite)));
  }

  // Does the arithmetic of to_float16(float).
  template <class D, class V = hn::VFromD<D>>
  static HWY_INLINE auto Narrow(D d, V value) {
    const hn::Rebind<uint32_t, D> du;
    const hn::Rebind<int32_t, D> di;
    const hn::Rebind<uint16_t, D> du16;
    const auto bits = hn::BitCast(du, value);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000));
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffff));
    const auto is_odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
    const auto bias = hn::Set(du, 0xfff - (uint32_t{127 - 15} << 23));
    const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, bias), is_odd));
    const auto half = hn::Set(d, 0.5f);
    const auto tiny =
        hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(du, half));
    const auto signed_magnitude = hn::BitCast(di, magnitude);
    const auto is_tiny = hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, 0x38800000)));
    const auto is_large = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x477fffff)));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
    auto result = hn::IfThenElse(is_tiny, tiny, normal);
    result = hn::IfThenElse(is_large, hn::Set(du, 0x7c00), result);
    result = hn::IfThenElse(is_nan, hn::Set(du, 0x7e00), result);
    return hn::DemoteTo(du16, hn::BitCast(di, hn::Or(sign, result)));
  }
#endif
};

// Vectors of one element type, computed in lanes of `Lane`. LoadTwo() may distribute the elements
// over its two vectors in any order. StoreTwo() puts each element back at its index.
template <class T>
struct Lanes {
  using Lane = T;
  using D = hn::ScalableTag<T>;
  using V = hn::VFromD<D>;
  static HWY_INLINE V Load(const T* data) { return hn::LoadU(D(), data); }
  static HWY_INLINE void Store(V value, T* data) { hn::StoreU(value, D(), data); }
  static HWY_INLINE void LoadTwo(const T* data, V& first, V& second) {
    first = Load(data);
    second = Load(data + hn::Lanes(D()));
  }
  static HWY_INLINE void StoreTwo(V first, V second, T* data) {
    Store(first, data);
    Store(second, data + hn::Lanes(D()));
  }
  // Stores past the caches; `data` is aligned to vectors.
  static HWY_INLINE void StreamTwo(V first, V second, T* data) {
    hn::Stream(first, D(), data);
    hn::Stream(second, D(), data + hn::Lanes(D()));
  }
};

template <class T>
struct NarrowLanes {
  using Lane = float;
  using D = hn::ScalableTag<float>;
  using V = hn::VFromD<D>;
  using DBits = hn::Rebind<uint16_t, D>;
  static HWY_INLINE V Load(const T* data) {
    return Format<T>::Widen(D(), hn::LoadU(DBits(), reinterpret_cast<const uint16_t*>(data)));
  }
  static HWY_INLINE void Store(V value, T* data) {
    hn::StoreU(Format<T>::Narrow(D(), value), DBits(), reinterpret_cast<uint16_t*>(data));
  }
  static HWY_INLINE void LoadTwo(const T* data, V& first, V& second) {
    first = Load(data);
    second = Load(data + hn::Lanes(D()));
  }
  static HWY_INLINE void StoreTwo(V first, V second, T* data) {
    Store(first, data);
    Store(second, data + hn::Lanes(D()));
  }
#if HWY_TARGET != HWY_SCALAR
  // Stores both as one full vector, because Highway streams only full vectors.
  static HWY_INLINE void StreamTwo(V first, V second, T* data) {
    const hn::Twice<DBits> both;
    hn::Stream(hn::Combine(both, Format<T>::Narrow(D(), second), Format<T>::Narrow(D(), first)),
               both, reinterpret_cast<uint16_t*>(data));
  }
#endif
};

template <>
struct Lanes<Float16> : NarrowLanes<Float16> {};

template <>
struct Lanes<BFloat16> : NarrowLanes<BFloat16> {
#if HWY_TARGET != HWY_SCALAR
  using DBoth = hn::Twice<DBits>;
  static HWY_INLINE void LoadTwo(const BFloat16* data, V& even, V& odd) {
    Format<BFloat16>::WidenTwo(D(), hn::LoadU(DBoth(), reinterpret_cast<const uint16_t*>(data)),
                               even, odd);
  }
  static HWY_INLINE void StoreTwo(V even, V odd, BFloat16* data) {
    hn::StoreU(Format<BFloat16>::NarrowTwo(D(), even, odd), DBoth(),
               reinterpret_cast<uint16_t*>(data));
  }
  static HWY_INLINE void StreamTwo(V even, V odd, BFloat16* data) {
    hn::Stream(Format<BFloat16>::NarrowTwo(D(), even, odd), DBoth(),
               reinterpret_cast<uint16_t*>(data));
  }
#endif
};

}  // namespace tutti::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
