#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace tutti::nn {

/// Learning rates as functions of the step, counted from 0. Each begins with an optional linear
/// warm-up from base / (warmup + 1) to base over `warmup` steps.
struct ConstantSchedule {
  double base = 0.01;
  int64_t warmup = 0;
  double operator()(int64_t step) const {
    return step < warmup ? base * static_cast<double>(step + 1) / static_cast<double>(warmup + 1)
                         : base;
  }
};

/// base * factor^((step - warmup) / every), with integer division.
struct StepSchedule {
  double base = 0.01;
  int64_t every = 1000;
  double factor = 0.1;
  int64_t warmup = 0;
  double operator()(int64_t step) const {
    if (step < warmup) return ConstantSchedule{base, warmup}(step);
    const int64_t drops = (step - warmup) / every;
    return base * std::pow(factor, static_cast<double>(drops));
  }
};

/// Half a cosine from base to `least`, which it reaches at step `total` (Loshchilov and Hutter
/// 2017, one cycle).
struct CosineSchedule {
  double base = 0.01;
  int64_t total = 1000;
  double least = 0;
  int64_t warmup = 0;
  double operator()(int64_t step) const {
    if (step < warmup) return ConstantSchedule{base, warmup}(step);
    if (step >= total) return least;
    const double part = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
    return least + (base - least) * 0.5 * (1 + std::cos(std::numbers::pi * part));
  }
};

}  // namespace tutti::nn
