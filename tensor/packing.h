#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/tensor/dtype.h"

namespace tutti {

/// A factor and a whole divisor, kept apart so that integer averages stay exact. On floats an
/// element x becomes x * (factor / divisor), computed in f32 (f64 for f64) and rounded once; on
/// integers (x / divisor) truncated toward zero, then, if factor is not 1, multiplied in f64,
/// truncated toward zero and saturated. Booleans are left alone.
struct Scale {
  double factor = 1.0;
  int64_t divisor = 1;
  bool is_one() const { return factor == 1.0 && divisor == 1; }
};

/// One tensor's place in a bucket: elements [offset, offset + count) of the bucket are the
/// tensor's.
struct Piece {
  std::byte* data = nullptr;  // the tensor; pack only reads it
  DataType dtype = DataType::f32;
  int64_t offset = 0;  // in elements of the bucket
  int64_t count = 0;
};

/// A bucket in the memory of a device: `count` elements and, right behind them, `lanes` more of the
/// same type in which the ranks say whether they veto it. A library that knows of no verdicts
/// reduces these with the rest. Rank r votes in lane r % lanes, so that 8-bit sums do not wrap.
struct DeviceBucket {
  std::byte* data = nullptr;
  DataType dtype = DataType::f32;
  int64_t count = 0;
  int64_t lanes = 0;         // 0: the ranks agreed already
  int64_t own_lane = 0;      // of this rank
  bool zero_vetoes = false;  // ops min and product: a veto is 0 and no veto 1; else the reverse

  int clean() const { return zero_vetoes ? 1 : 0; }
};

/// What unpacking tells, in words that DeviceRuntime::take_word() made.
struct DeviceOutcome {
  uint64_t* word =
      nullptr;  // stored last (release), always: `clean` or `vetoed`; null: nobody asks
  uint64_t clean = 0;
  uint64_t vetoed = 0;
  std::span<uint64_t* const> gates;  // set to 1 after the pieces are written, if clean
};

}  // namespace tutti
