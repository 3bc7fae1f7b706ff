#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/tensor.h"

namespace tutti::bench {

/// Small whole numbers that differ between ranks. Their reduction over all ranks is exact in every
/// dtype and in any order, so results can be compared bit by bit. They repeat with a prime period.
/// A comparison therefore fails if an algorithm shifts data by a chunk or a cache line.
class ExactData {
 public:
  static constexpr int64_t kPeriod = 8191;

  ExactData(DataType dtype, ReduceOp op, int ranks) : dtype_(dtype), op_(op), ranks_(ranks) {}

  /// input() returns element `i` of the input of `rank`. reduced() returns that of the result.
  int64_t input(int rank, int64_t i) const;
  int64_t reduced(int64_t i) const;

 private:
  const DataType dtype_;
  const ReduceOp op_;
  const int ranks_;
};

/// One period of a sequence, as elements of a dtype.
class Pattern {
 public:
  Pattern(DataType dtype, const std::function<int64_t(int64_t)>& value);

  /// Writes elements [phase, phase + count) of the sequence, which repeats without end.
  void fill(std::byte* data, int64_t count, int64_t phase = 0) const;
  /// Returns how many of `count` elements differ in any bit from the sequence that begins at
  /// `phase`.
  int64_t count_wrong(const std::byte* data, int64_t count, int64_t phase = 0) const;

 private:
  // Calls piece(offset, first, count) for each run of elements within one period.
  void for_each_piece(int64_t count, int64_t phase,
                      const std::function<void(int64_t, int64_t, int64_t)>& piece) const;
  const int64_t width_;
  std::vector<std::byte> period_;
};

}  // namespace tutti::bench
