#pragma once

/// This header is included before any other header of Highway. On x86 it enables AVX-512, AVX2,
/// SSE4 and the baseline. The other instruction sets cost compile time without a measurable gain.
#include <hwy/detect_targets.h>
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
