// This file is compiled once per instruction set by foreach_target.h. Each step chooses the
// instruction set at run time. A product is rounded before it is added (-ffp-contract=off keeps the
// compiler from fusing them), so that every instruction set, every lane of a vector and the tail
// give the same bits.
#include "tutti/kernels/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/adapters/nn/kernels/optimizer_steps.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
//
#include "tutti/adapters/nn/kernels/optimizer_steps.h"
#include "tutti/adapters/nn/kernels/step_factors.h"
#include "tutti/base/check.h"

#ifndef TUTTI_KERNELS_LAYERS_OPTIMIZER_STEPS
#define TUTTI_KERNELS_LAYERS_OPTIMIZER_STEPS
namespace tutti {

struct StepArrays {
  size_t count;
  float* value;
  const float* gradient;
  float *first, *second;  // the optimizer's state; null if it has none
};

}  // namespace tutti
#endif

HWY_BEFORE_NAMESPACE();
namespace tutti::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The hardware prefetcher stops at every page, and a fused step walks its arrays in pieces. So
// cache lines are prefetched 24 lines ahead into the second-level cache and 6 lines ahead into the
// first, as in the sums of reduce.cc.
HWY_INLINE void FetchAhead(const StepArrays& arrays, size_t i) {
  constexpr size_t kLine = 16, kFar = 24 * kLine, kNear = 6 * kLine;
  for (const float* array :
       {static_cast<const float*>(arrays.value), arrays.gradient,
        static_cast<const float*>(arrays.first), static_cast<const float*>(arrays.second)}) {
    if (array == nullptr) continue;
    __builtin_prefetch(array + i + kFar, 0, 2);
    __builtin_prefetch(array + i + kNear, 0, 3);
  }
}

// Updates one vector of elements, beginning with element i: w = kept * w - change. Step::Change()
// computes the change from the gradient, after the decay was added to it.
template <class Step, class D>
HWY_INLINE void Apply(D d, const StepFactors& factors, const StepArrays& arrays, size_t i) {
  const auto w = hn::LoadU(d, arrays.value + i);
  const auto g = hn::Add(hn::LoadU(d, arrays.gradient + i), hn::Mul(hn::Set(d, factors.decay), w));
  const auto change = Step::Change(d, factors, arrays, i, g);
  hn::StoreU(hn::Sub(hn::Mul(hn::Set(d, factors.kept), w), change), d, arrays.value + i);
}

// Applies the step to whole vectors, then to the remaining elements one by one.
template <class Step>
HWY_INLINE void ForEach(const StepFactors& factors, const StepArrays& arrays) {
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 1> one;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= arrays.count; i += lanes) {
    FetchAhead(arrays, i);
    Apply<Step>(d, factors, arrays, i);
  }
  for (; i < arrays.count; ++i) Apply<Step>(one, factors, arrays, i);
}

struct Sgd {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Change(D d, const StepFactors& factors, const StepArrays& arrays, size_t i,
                             V g) {
    const V rate = hn::Set(d, factors.rate);
    if (arrays.first == nullptr) return hn::Mul(rate, g);
    const V v = hn::Add(hn::Mul(hn::Set(d, factors.momentum), hn::LoadU(d, arrays.first + i)), g);
    hn::StoreU(v, d, arrays.first + i);
    return hn::Mul(rate, hn::Add(hn::Mul(hn::Set(d, factors.direct), g),
                                 hn::Mul(hn::Set(d, factors.carried), v)));
  }
};

struct Adam {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Change(D d, const StepFactors& factors, const StepArrays& arrays, size_t i,
                             V g) {
    const V m = hn::Add(hn::Mul(hn::Set(d, factors.beta1), hn::LoadU(d, arrays.first + i)),
                        hn::Mul(hn::Set(d, factors.rest1), g));
    const V v = hn::Add(hn::Mul(hn::Set(d, factors.beta2), hn::LoadU(d, arrays.second + i)),
                        hn::Mul(hn::Mul(hn::Set(d, factors.rest2), g), g));
    hn::StoreU(m, d, arrays.first + i);
    hn::StoreU(v, d, arrays.second + i);
    const V divisor =
        hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, factors.correction)), hn::Set(d, factors.epsilon));
    return hn::Div(hn::Mul(hn::Set(d, factors.rate), m), divisor);
  }
};

struct RmsProp {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Change(D d, const StepFactors& factors, const StepArrays& arrays, size_t i,
                             V g) {
    const V s = hn::Add(hn::Mul(hn::Set(d, factors.keep), hn::LoadU(d, arrays.first + i)),
                        hn::Mul(hn::Mul(hn::Set(d, factors.rest), g), g));
    hn::StoreU(s, d, arrays.first + i);
    V v = hn::Div(g, hn::Add(hn::Sqrt(s), hn::Set(d, factors.epsilon)));
    if (arrays.second != nullptr) {
      v = hn::Add(hn::Mul(hn::Set(d, factors.momentum), hn::LoadU(d, arrays.second + i)), v);
      hn::StoreU(v, d, arrays.second + i);
    }
    return hn::Mul(hn::Set(d, factors.rate), v);
  }
};

void SgdStep(const StepFactors& factors, const StepArrays& arrays) {
  ForEach<Sgd>(factors, arrays);
}
void AdamStep(const StepFactors& factors, const StepArrays& arrays) {
  ForEach<Adam>(factors, arrays);
}
void RmsPropStep(const StepFactors& factors, const StepArrays& arrays) {
  ForEach<RmsProp>(factors, arrays);
}

}  // namespace tutti::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti {

HWY_EXPORT(SgdStep);
HWY_EXPORT(AdamStep);
HWY_EXPORT(RmsPropStep);

void sgd_step(const SgdSettings& settings, std::span<float> value, std::span<const float> gradient,
              std::span<float> velocity) {
  const size_t count = value.size();
  const bool has_velocity = settings.momentum != 0;
  TUTTI_CHECK(gradient.size() == count && (!has_velocity || velocity.size() == count));
  HWY_DYNAMIC_DISPATCH(SgdStep)
  (factors_of(settings),
   {count, value.data(), gradient.data(), has_velocity ? velocity.data() : nullptr, nullptr});
}

void adam_step(const AdamSettings& settings, std::span<float> value,
               std::span<const float> gradient, std::span<float> first_moment,
               std::span<float> second_moment) {
  const size_t count = value.size();
  TUTTI_CHECK(gradient.size() == count && first_moment.size() == count &&
              second_moment.size() == count && settings.step >= 1);
  HWY_DYNAMIC_DISPATCH(AdamStep)
  (factors_of(settings),
   {count, value.data(), gradient.data(), first_moment.data(), second_moment.data()});
}

void rms_prop_step(const RmsPropSettings& settings, std::span<float> value,
                   std::span<const float> gradient, std::span<float> mean_square,
                   std::span<float> velocity) {
  const size_t count = value.size();
  const bool has_velocity = settings.momentum != 0;
  TUTTI_CHECK(gradient.size() == count && mean_square.size() == count &&
              (!has_velocity || velocity.size() == count));
  HWY_DYNAMIC_DISPATCH(RmsPropStep)
  (factors_of(settings), {count, value.data(), gradient.data(), mean_square.data(),
                          has_velocity ? velocity.data() : nullptr});
}

}  // namespace tutti
#endif
