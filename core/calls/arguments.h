#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/core/settings/options.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

// Checks of a call's arguments that a rank can make alone. All throw Error(invalid_argument).

/// Returns the first extent. A scalar has one row.
int64_t rows_of(const Shape& shape);
/// Checks that both tensors have the same shape, dtype and layout.
void check_alike(std::string_view name, const TensorView& input, const TensorView& output);
/// Checks that both tensors have the same dtype and the same extents apart from the first.
void check_row_type(std::string_view name, const TensorView& input, const TensorView& output);
/// Checks that `rows` is empty or has one row count per rank, none of them negative.
void check_rows(std::string_view name, std::span<const int64_t> rows, int size);
/// Checks `rows` like check_rows() and returns a copy.
std::vector<int64_t> checked_rows(std::string_view name, std::span<const int64_t> rows, int size);
/// Checks that `input` and `output` do not overlap, unless `output` begins exactly `in_place_at`
/// bytes after `input` (before it, if negative).
void check_apart(std::string_view name, const TensorView& input, const TensorView& output,
                 int64_t in_place_at);
/// Returns the byte offset of this rank's part of `input`. `rows` has the number of rows of each
/// rank's part. If it is empty, the parts are equal and the lowest ranks get the remainder.
int64_t bytes_before(const Options& options, const TensorView& input,
                     std::span<const int64_t> rows);
/// Checks a reduce_scatter. Its output may be this rank's part of the input, which begins `part_at`
/// bytes after the input's beginning. In host memory it may also be the beginning of the input.
void check_scattered(std::string_view name, const TensorView& input, const TensorView& output,
                     int64_t part_at);
/// Checks an allgather or gather. Its input may be whole rows of its output. They must be this
/// rank's own rows, which a rank can only check once all ranks have announced their row counts.
void check_part(std::string_view name, const TensorView& input, const TensorView& output);
/// Checks a gather like check_part(). On a device its input must also lie outside its output.
void check_gathered(std::string_view name, const TensorView& input, const TensorView& output);
/// Checks a send and a receive that run at the same time: their memory must not overlap.
void check_disjoint(std::string_view name, const TensorView& input, const TensorView& output);
/// Checks an exchange of parts between all ranks (alltoall). In host memory the output may be the
/// input. On a device the two must not overlap.
void check_exchanged(std::string_view name, const TensorView& input, const TensorView& output);

}  // namespace tutti
