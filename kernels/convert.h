#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/packing.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// Conversions of single values: nearest even, NaN stays NaN (quiet), denormals kept, overflow to
/// infinity.
float to_float(Float16 value) noexcept;
float to_float(BFloat16 value) noexcept;
Float16 to_float16(float value) noexcept;
BFloat16 to_bfloat16(float value) noexcept;

/// data[i] = scale(data[i]) in place; see Scale for the arithmetic.
void scale(DataType dtype, std::byte* data, int64_t count, Scale scale);
void scale_reference(DataType dtype, std::byte* data, int64_t count, Scale scale);

/// output[i] = scale(input[i]) in another element type. Between floats the scale is applied in f32
/// (f64 if either side is f64) and rounded once; between a float and an integer in f64; between
/// integers as Scale says. Float to integer truncates toward zero and saturates, NaN becomes 0;
/// integer to integer saturates; integer to float rounds to nearest even. Bool is 0 or 1, counts
/// all but zero as 1, and is not scaled. Same dtype and scale one is a copy. `input` may equal
/// `output` only if the element sizes are equal, and must not overlap it otherwise.
void cast(DataType from, const std::byte* input, DataType to, std::byte* output, int64_t count,
          Scale scale = {});
void cast_reference(DataType from, const std::byte* input, DataType to, std::byte* output,
                    int64_t count, Scale scale = {});

/// Fills elements [begin, end) of a bucket, which are at `bucket`, from the pieces that lie there
/// (ascending offsets, not overlapping), casting to the bucket's type and scaling in the same pass.
/// Elements between pieces are set to zero.
void pack(std::span<const Piece> pieces, DataType bucket_dtype, std::byte* bucket, int64_t begin,
          int64_t end, Scale scale = {});
/// The way back: elements [begin, end) of the bucket to the pieces that lie there.
void unpack(std::span<const Piece> pieces, DataType bucket_dtype, const std::byte* bucket,
            int64_t begin, int64_t end, Scale scale = {});

}  // namespace tutti
