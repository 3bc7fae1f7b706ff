#pragma once

#include <cstdint>

namespace tutti {

/// Loops over one row or plane of f32, compiled for each instruction set and chosen at run time.
/// Sums are computed in f64. `count` may be 0 except where a comment says otherwise.

struct TwoSums {
  double first = 0, second = 0;
};

/// Returns the sums of x and of x * x.
TwoSums sum_and_squares(const float* x, int64_t count);
/// Returns the sum of (x - center)^2.
double centered_squares(const float* x, double center, int64_t count);
/// Returns the sums of dy and of dy * (x - center).
TwoSums gradient_sums(const float* dy, const float* x, float center, int64_t count);
/// Returns the sums of dy * w and of dy * w * (x - center).
TwoSums weighted_gradient_sums(const float* dy, const float* w, const float* x, float center,
                               int64_t count);

/// y = (x - center) * scale + shift
void scale_plane(const float* x, float center, float scale, float shift, float* y, int64_t count);
/// dx = scale * (dy - base - (x - center) * slope)
void plane_gradient(const float* dy, const float* x, float scale, float base, float center,
                    float slope, float* dx, int64_t count);
/// y = (x - center) * scale * w + b
void scale_row(const float* x, float center, float scale, const float* w, const float* b, float* y,
               int64_t count);
/// dx = scale * (dy * w - base - (x - center) * slope)
void row_gradient(const float* dy, const float* w, const float* x, float scale, float base,
                  float center, float slope, float* dx, int64_t count);
/// dw += dy * ((x - center) * scale), db += dy
void add_row_gradients(const float* dy, const float* x, float center, float scale, double* dw,
                       double* db, int64_t count);
/// sums += x
void add_row(const float* x, double* sums, int64_t count);

/// Returns the largest element; `count` is at least 1.
float largest(const float* x, int64_t count);
/// Computes y = exp(x - base) and returns the sum of y. y may be x.
double exponentials(const float* x, float base, float* y, int64_t count);
/// Returns the sum of exp(x - base) without storing the terms.
double sum_of_exponentials(const float* x, float base, int64_t count);
/// y = x - base
void subtract(const float* x, float base, float* y, int64_t count);
/// y = factor * exp(x)
void scaled_exponentials(const float* x, float factor, float* y, int64_t count);
/// x *= factor
void multiply_row(float* x, float factor, int64_t count);
/// Returns the sum of a * b.
double sum_of_products(const float* a, const float* b, int64_t count);
/// y = p * (y - base)
void softmax_gradient(const float* p, float base, float* y, int64_t count);

}  // namespace tutti
