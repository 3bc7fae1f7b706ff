#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/core/settings/options.h"
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
void check_rows(std::string_view name, std::span<const int64_t> rows, int size);
/// The same, copied.
std::vector<int64_t> checked_rows(std::string_view name, std::span<const int64_t> rows, int size);
/// That `input` and `output` are different memory, unless `output` begins `in_place_at` bytes
/// behind `input` (before, if negative).
void check_apart(std::string_view name, const TensorView& input, const TensorView& output,
                 int64_t in_place_at);
/// Of `input`, whose rows are dealt by `rows` (empty: equally, the remainder to the lowest ranks):
/// where this rank's part begins.
int64_t bytes_before(const Options& options, const TensorView& input,
                     std::span<const int64_t> rows);
/// The output of a reduce_scatter may be this rank's part of the input. In host memory it may also
/// be the beginning of the input.
void check_scattered(std::string_view name, const TensorView& input, const TensorView& output,
                     int64_t part_at);
/// An allgather's or gather's input may be whole rows of its output: this rank's, whose place is
/// known when all have told of theirs.
void check_part(std::string_view name, const TensorView& input, const TensorView& output);
/// The same for a gather. On a device its input must lie outside its output.
void check_gathered(std::string_view name, const TensorView& input, const TensorView& output);
/// For what is sent and received at the same time.
void check_disjoint(std::string_view name, const TensorView& input, const TensorView& output);
/// For exchanged parts. In host memory the output may be the input. On a device it must lie
/// elsewhere.
void check_exchanged(std::string_view name, const TensorView& input, const TensorView& output);

}  // namespace tutti
