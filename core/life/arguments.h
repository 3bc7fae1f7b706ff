#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti {

// What a rank alone can see of the arguments of a call. All throw Error(invalid_argument).

/// Of the first extent; a scalar is one row.
int64_t rows_of(const Shape& shape);
/// Shape, dtype and layout of the two.
void check_alike(std::string_view name, const TensorView& input, const TensorView& output);
/// Dtype and all extents but the first.
void check_row_type(std::string_view name, const TensorView& input, const TensorView& output);
/// One row count a rank, or none.
std::vector<int64_t> checked_rows(std::string_view name, std::span<const int64_t> rows, int size);
/// That `input` and `output` are different memory, unless `output` begins `in_place_at` bytes
/// behind `input` (before, if negative).
void check_apart(std::string_view name, const TensorView& input, const TensorView& output,
                 int64_t in_place_at);
/// The same with no way to be in place.
void check_apart(std::string_view name, const TensorView& input, const TensorView& output);

}  // namespace tutti
