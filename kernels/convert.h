#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/packing.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// Convert single values. They round to nearest even, keep NaN (as quiet NaN) and denormals, and
/// overflow to infinity.
float to_float(Float16 value) noexcept;
float to_float(BFloat16 value) noexcept;
Float16 to_float16(float value) noexcept;
BFloat16 to_bfloat16(float value) noexcept;

/// data[i] = scale(data[i]) in place; see Scale for the arithmetic.
void scale(DataType dtype, std::byte* data, int64_t count, Scale scale);
void scale_reference(DataType dtype, std::byte* data, int64_t count, Scale scale);

/// output[i] = scale(input[i]), converted to another element type. Between floats the scale is
/// applied in f32 (f64 if either side is f64) and the result is rounded once. Between a float and
/// an integer it is applied in f64, and between integers as Scale describes. A float becomes an
/// integer by truncation toward zero; it saturates, and NaN becomes 0. An integer saturates in
/// another integer type and rounds to nearest even in a float type. A bool is stored as 0 or 1, is
/// read as 1 unless it is zero, and is never scaled. With equal dtypes and a scale of one this is a
/// copy. `input` may equal `output` only if the element sizes are equal; otherwise the two must not
/// overlap.
void cast(DataType from, const std::byte* input, DataType to, std::byte* output, int64_t count,
          Scale scale = {});
void cast_reference(DataType from, const std::byte* input, DataType to, std::byte* output,
                    int64_t count, Scale scale = {});

/// Fills elements [begin, end) of a bucket from the pieces that overlap this range, casting to the
/// bucket's type and scaling in the same pass. `bucket` points to element `begin`. The pieces have
/// ascending offsets and do not overlap. Elements between pieces are set to zero.
void pack(std::span<const Piece> pieces, DataType bucket_dtype, std::byte* bucket, int64_t begin,
          int64_t end, Scale scale = {});
/// The reverse of pack(): copies elements [begin, end) of the bucket into the pieces that overlap
/// this range.
void unpack(std::span<const Piece> pieces, DataType bucket_dtype, const std::byte* bucket,
            int64_t begin, int64_t end, Scale scale = {});

}  // namespace tutti
