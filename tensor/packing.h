#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/tensor/dtype.h"

namespace tutti {

/// A factor and an integer divisor, kept apart so that integer averages stay exact. A float x
/// becomes x * (factor / divisor), computed in f32 (f64 for f64) and rounded once. An integer
/// becomes (x / divisor), truncated toward zero. If factor is not 1, this quotient is multiplied by
/// it in f64, truncated toward zero and saturated. Booleans are unchanged.
struct Scale {
  double factor = 1.0;
  int64_t divisor = 1;
  bool is_one() const { return factor == 1.0 && divisor == 1; }
};

/// One tensor's range of a bucket: elements [offset, offset + count) of the bucket are the
/// tensor's.
struct Piece {
  std::byte* data = nullptr;  // the tensor; pack only reads it
  DataType dtype = DataType::f32;
  int64_t offset = 0;  // first element in the bucket
  int64_t count = 0;
};

/// A bucket in the memory of a device: `count` elements, followed by `lanes` more elements of the
/// same type in which the ranks store whether they veto the operation. A reducing library that
/// knows nothing of vetoes reduces these lanes like all other elements. Rank r uses lane r % lanes,
/// so that 8-bit sums do not wrap.
struct DeviceBucket {
  std::byte* data = nullptr;
  DataType dtype = DataType::f32;
  int64_t count = 0;
  int64_t lanes = 0;         // 0 if the ranks have already agreed
  int64_t own_lane = 0;      // this rank's lane
  bool zero_vetoes = false;  // true for min and product: a veto is 0, no veto is 1; else reversed

  int clean() const { return zero_vetoes ? 1 : 0; }
};

/// The words in which unpacking stores its outcome. They are from DeviceRuntime::take_word().
struct DeviceOutcome {
  uint64_t* word =
      nullptr;  // always stored last (release): `clean` or `vetoed`; null if nobody reads it
  uint64_t clean = 0;
  uint64_t vetoed = 0;
  /// Set to 1 after the pieces are written; unchanged after a veto.
  std::span<uint64_t* const> gates;
};

}  // namespace tutti
