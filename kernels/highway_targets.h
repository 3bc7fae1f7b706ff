#pragma once

/// Included before any other header of Highway. Of x86's instruction sets AVX-512, AVX2, SSE4 and
/// the plain baseline are compiled; the others add compile time and nothing that can be measured.
#include <hwy/detect_targets.h>
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
