// This file is compiled once per instruction set by foreach_target.h. Most loops are plain, and the
// compiler vectorises them for each instruction set. Exponentials are Highway's.
#include "tutti/kernels/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/adapters/nn/kernels/cpu/row_loops.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
//
#include <hwy/contrib/math/math-inl.h>

#include <algorithm>

#include "tutti/adapters/nn/kernels/cpu/row_loops.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

TwoSums SumAndSquares(const float* HWY_RESTRICT x, int64_t count) {
  double sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum, squares)
  for (int64_t i = 0; i < count; ++i) {
    const double value = x[i];
    sum += value;
    squares += value * value;
  }
  return {sum, squares};
}

double CenteredSquares(const float* HWY_RESTRICT x, double center, int64_t count) {
  double squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(x[i]) - center;
    squares += difference * difference;
  }
  return squares;
}

TwoSums GradientSums(const float* HWY_RESTRICT dy, const float* HWY_RESTRICT x, float center,
                     int64_t count) {
  double sum = 0, products = 0;
#pragma omp simd reduction(+ : sum, products)
  for (int64_t i = 0; i < count; ++i) {
    const double gradient = dy[i];
    sum += gradient;
    products += gradient * static_cast<double>(x[i] - center);
  }
  return {sum, products};
}

TwoSums WeightedGradientSums(const float* HWY_RESTRICT dy, const float* HWY_RESTRICT w,
                             const float* HWY_RESTRICT x, float center, int64_t count) {
  double sum = 0, products = 0;
#pragma omp simd reduction(+ : sum, products)
  for (int64_t i = 0; i < count; ++i) {
    const double gradient = static_cast<double>(dy[i] * w[i]);
    sum += gradient;
    products += gradient * static_cast<double>(x[i] - center);
  }
  return {sum, products};
}

void ScalePlane(const float* HWY_RESTRICT x, float center, float scale, float shift,
                float* HWY_RESTRICT y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - center) * scale + shift;
}

void PlaneGradient(const float* HWY_RESTRICT dy, const float* HWY_RESTRICT x, float scale,
                   float base, float center, float slope, float* HWY_RESTRICT dx, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) dx[i] = scale * (dy[i] - base - (x[i] - center) * slope);
}

void ScaleRow(const float* HWY_RESTRICT x, float center, float scale, const float* HWY_RESTRICT w,
              const float* HWY_RESTRICT b, float* HWY_RESTRICT y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - center) * scale * w[i] + b[i];
}

void RowGradient(const float* HWY_RESTRICT dy, const float* HWY_RESTRICT w,
                 const float* HWY_RESTRICT x, float scale, float base, float center, float slope,
                 float* HWY_RESTRICT dx, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i)
    dx[i] = scale * (dy[i] * w[i] - base - (x[i] - center) * slope);
}

void AddRowGradients(const float* HWY_RESTRICT dy, const float* HWY_RESTRICT x, float center,
                     float scale, double* HWY_RESTRICT dw, double* HWY_RESTRICT db, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    dw[i] += static_cast<double>(dy[i] * ((x[i] - center) * scale));
    db[i] += static_cast<double>(dy[i]);
  }
}

void AddRow(const float* HWY_RESTRICT x, double* HWY_RESTRICT sums, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(x[i]);
}

float Largest(const float* HWY_RESTRICT x, int64_t count) {
  float most = x[0];
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < count; ++i) most = std::max(most, x[i]);
  return most;
}

void Subtract(const float* x, float base, float* y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] - base;
}

void MultiplyRow(float* HWY_RESTRICT x, float factor, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

double SumOfProducts(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i] * b[i]);
  return sum;
}

void SoftmaxGradient(const float* HWY_RESTRICT p, float base, float* HWY_RESTRICT y,
                     int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = p[i] * (y[i] - base);
}

// Returns exp(x - base). A denormal result becomes zero, as does that of -infinity. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Power(D d, const float* x, V base) {
  const V difference = hn::Sub(hn::LoadU(d, x), base);
  const V power = hn::Exp(d, hn::Max(difference, hn::Set(d, -104.0f)));
  // Highway's Max() may drop a NaN.
  return hn::IfThenElse(hn::IsNaN(difference), difference, power);
}

// Sums exponentials: f32 lanes add up a few vectors, and their sums are added in f64.
template <bool kKeep>
HWY_INLINE double SumPowers(const float* x, float base, float* y, int64_t count) {
  constexpr int64_t kVectors = 16;
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto whole = count / lanes * lanes;
  double sum = 0;
  for (int64_t block = 0; block < whole; block += kVectors * lanes) {
    auto lane_sums = hn::Zero(d);
    const int64_t end = std::min(whole, block + kVectors * lanes);
    for (int64_t i = block; i < end; i += lanes) {
      const auto power = Power(d, x + i, hn::Set(d, base));
      if (kKeep) hn::StoreU(power, d, y + i);
      lane_sums = hn::Add(lane_sums, power);
    }
    sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, lane_sums)));
  }
  for (int64_t i = whole; i < count; ++i) {
    const float power = hn::GetLane(Power(one, x + i, hn::Set(one, base)));
    if (kKeep) y[i] = power;
    sum += static_cast<double>(power);
  }
  return sum;
}

double Exponentials(const float* x, float base, float* y, int64_t count) {
  return SumPowers<true>(x, base, y, count);
}

double SumOfExponentials(const float* x, float base, int64_t count) {
  return SumPowers<false>(x, base, nullptr, count);
}

void ScaledExponentials(const float* x, float factor, float* y, int64_t count) {
  const hn::CappedTag<float, 16> d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(hn::Mul(Power(d, x + i, hn::Zero(d)), hn::Set(d, factor)), d, y + i);
  for (; i < count; ++i) y[i] = hn::GetLane(Power(one, x + i, hn::Zero(one))) * factor;
}

}  // namespace tutti::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti {

HWY_EXPORT(SumAndSquares);
HWY_EXPORT(CenteredSquares);
HWY_EXPORT(GradientSums);
HWY_EXPORT(WeightedGradientSums);
HWY_EXPORT(ScalePlane);
HWY_EXPORT(PlaneGradient);
HWY_EXPORT(ScaleRow);
HWY_EXPORT(RowGradient);
HWY_EXPORT(AddRowGradients);
HWY_EXPORT(AddRow);
HWY_EXPORT(Largest);
HWY_EXPORT(Subtract);
HWY_EXPORT(MultiplyRow);
HWY_EXPORT(SumOfProducts);
HWY_EXPORT(SoftmaxGradient);
HWY_EXPORT(Exponentials);
HWY_EXPORT(SumOfExponentials);
HWY_EXPORT(ScaledExponentials);

TwoSums sum_and_squares(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(SumAndSquares)(x, count);
}
double centered_squares(const float* x, double center, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(CenteredSquares)(x, center, count);
}
TwoSums gradient_sums(const float* dy, const float* x, float center, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(GradientSums)(dy, x, center, count);
}
TwoSums weighted_gradient_sums(const float* dy, const float* w, const float* x, float center,
                               int64_t count) {
  return HWY_DYNAMIC_DISPATCH(WeightedGradientSums)(dy, w, x, center, count);
}
void scale_plane(const float* x, float center, float scale, float shift, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(ScalePlane)(x, center, scale, shift, y, count);
}
void plane_gradient(const float* dy, const float* x, float scale, float base, float center,
                    float slope, float* dx, int64_t count) {
  HWY_DYNAMIC_DISPATCH(PlaneGradient)(dy, x, scale, base, center, slope, dx, count);
}
void scale_row(const float* x, float center, float scale, const float* w, const float* b, float* y,
               int64_t count) {
  HWY_DYNAMIC_DISPATCH(ScaleRow)(x, center, scale, w, b, y, count);
}
void row_gradient(const float* dy, const float* w, const float* x, float scale, float base,
                  float center, float slope, float* dx, int64_t count) {
  HWY_DYNAMIC_DISPATCH(RowGradient)(dy, w, x, scale, base, center, slope, dx, count);
}
void add_row_gradients(const float* dy, const float* x, float center, float scale, double* dw,
                       double* db, int64_t count) {
  HWY_DYNAMIC_DISPATCH(AddRowGradients)(dy, x, center, scale, dw, db, count);
}
void add_row(const float* x, double* sums, int64_t count) {
  HWY_DYNAMIC_DISPATCH(AddRow)(x, sums, count);
}
float largest(const float* x, int64_t count) { return HWY_DYNAMIC_DISPATCH(Largest)(x, count); }
void subtract(const float* x, float base, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(Subtract)(x, base, y, count);
}
void multiply_row(float* x, float factor, int64_t count) {
  HWY_DYNAMIC_DISPATCH(MultiplyRow)(x, factor, count);
}
double sum_of_products(const float* a, const float* b, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(SumOfProducts)(a, b, count);
}
void softmax_gradient(const float* p, float base, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradient)(p, base, y, count);
}
double exponentials(const float* x, float base, float* y, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(Exponentials)(x, base, y, count);
}
double sum_of_exponentials(const float* x, float base, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(SumOfExponentials)(x, base, count);
}
void scaled_exponentials(const float* x, float factor, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(ScaledExponentials)(x, factor, y, count);
}

}  // namespace tutti
#endif
